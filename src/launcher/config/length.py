"""The length of a run: `trainer.max_steps`, which is computed from `trainer.max_epochs` if that is set."""

from collections.abc import Mapping
from typing import Any


def with_steps(config: Mapping[str, Any], steps: float) -> dict[str, Any]:
    """A configuration with another `trainer.max_steps`, which a schedule over the whole run follows.

    Args:
        config: resolved, as plain containers.
    """
    scheduler, before = config.get("scheduler") or {}, config["trainer"]["max_steps"]
    nodes = {"trainer": {**config["trainer"], "max_steps": steps}}
    if scheduler.get("max_steps") == before:
        nodes["scheduler"] = {**scheduler, "max_steps": steps}
    return {**config, **nodes}
