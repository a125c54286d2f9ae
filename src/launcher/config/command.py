"""Data that run.json stores about a configuration and the command that composed it."""

import json
from collections.abc import Mapping
from typing import Any

from launcher.config.tree import flat, get, mapped, of_the_run
from launcher.rundir.record_format import RecordData, json_value


def task_overrides() -> list[str]:
    """The overrides of the command line as they were typed, none if Hydra did not start the job.

    Typed text is used because an interpolation in it may refer to a secret.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    node = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    overrides: Any = OmegaConf.to_container(node, resolve=False) if node else []
    return [str(word) for word in overrides]


def command_record(config: Mapping[str, Any], hydra: Mapping[str, object] | None) -> RecordData:
    """Return the data about a command that its run stores.

    Args:
        config: as it is stored (see `launcher.config.resolve.stored`).
        hydra: Hydra's node as plain containers, or None if no command line composed the
            configuration.
    Returns:
        `overrides`, `choices` and `config_dir` of the command, `config` by dotted keys, `identity`,
            and `identity_id`,
        the id that it gives; null for a run that `run.id=...` names.
    """
    node = hydra or {}
    sources = get(node, "runtime.config_sources") or []
    folders = [source["path"] for source in sources if source["provider"] == "command-line"]
    run = config.get("run") or {}
    known = stored_identity(run)
    return {
        "overrides": None if hydra is None else list(get(node, "overrides.task") or []),
        "choices": for_json(get(node, "runtime.choices") or {}),
        "config_dir": folders[0] if folders else None,
        "config": for_json(flat(of_the_run(config))),
        "identity": None if known is None else known[1],
        "identity_id": known[0] if known is not None and known[0] == run.get("id") else None,
    }


def stored_identity(run: Mapping[Any, Any]) -> tuple[str, dict[str, object]] | None:
    """Return the id that a configuration gives its run, and the run's identity.

    The identity has no values from the environment. Both are None if they are not known.

    Args:
        run: the node `run`.
    """
    text = run.get("identity")
    known = None if text is None else json.loads(text)
    return None if known is None else (known["id"], known["identity"])


def for_json(tree: Mapping[str, object]) -> dict[str, object]:
    plain: dict[str, object] = mapped(tree, lambda value, keys: json_value(value))
    return plain
