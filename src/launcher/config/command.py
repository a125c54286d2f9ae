"""What run.json stores of a configuration and of the command that composed it."""

from collections.abc import Mapping
from typing import Any

from launcher.config.tree import flat, get, mapped
from launcher.run.record_format import json_value


def task_overrides() -> list[str]:
    """The overrides of the command line as they were typed, none where Hydra did not start the job: an interpolation in
    them may be that of a secret."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    node = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    words: Any = OmegaConf.to_container(node, resolve=False) if node else []
    return [str(word) for word in words]


def command_record(config: Mapping[str, Any], hydra: Mapping[str, Any] | None) -> dict[str, Any]:
    """
    Args:
        config: as it is stored (see `launcher.config.resolve.resolved`).
        hydra: Hydra's node as plain containers; None: no command line composed the configuration.
    Returns:
        `overrides`, `choices` and `config_dir` of the command, and `config` by dotted keys.
    """
    node = hydra or {}
    sources = get(node, "runtime.config_sources") or []
    folders = [source["path"] for source in sources if source["provider"] == "command-line"]
    return {
        "overrides": None if hydra is None else list(get(node, "overrides.task") or []),
        "choices": _for_json(get(node, "runtime.choices") or {}),
        "config_dir": folders[0] if folders else None,
        "config": _for_json(flat(config)),
    }


def _for_json(tree: Mapping[str, Any]) -> Any:
    return mapped(tree, lambda value, keys: json_value(value))
