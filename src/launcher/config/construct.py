"""Builds a part from its resolved settings."""

from collections.abc import Mapping
from typing import Any

from hydra.utils import get_object
from omegaconf import OmegaConf

from launcher.config.resolve import escaped


def construct(settings: Mapping[str, Any]) -> Any:
    """What `_target_` names, called with the other settings. Hydra's `instantiate` would resolve them once more: a
    shell line with `${HOME}`, which is written `\\${HOME}` in a configuration, would become an interpolation.

    Args:
        settings: plain containers, as they are stored: values from the environment are read now.
    """
    stored: Any = OmegaConf.to_container(OmegaConf.create(escaped(settings)), resolve=True)
    arguments = {key: value for key, value in stored.items() if key not in ("_target_", "_recursive_", "_convert_")}
    return get_object(str(settings["_target_"]))(**arguments)
