"""What has changed since a checkpoint was written."""

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from launcher.config.identity import drift
from launcher.config.plain_yaml import load

OF_THE_ATTEMPT = ("trainer.pause_at",)
"""Keys that configure one attempt, not the run."""


def changes_since(checkpoint: Path, config: dict[str, Any], code: dict[str, Any]) -> list[str]:
    """A sentence for each difference in configuration, code and versions between a checkpoint and now."""
    sentences: list[str] = []
    for name, present in (("config.yaml", config), ("code.yaml", code)):
        if (file := checkpoint / name).exists() and _loaded_fast(file) != present:
            sentences += drift(OmegaConf.to_container(OmegaConf.load(file)), present)  # type: ignore[arg-type]
    return [sentence for sentence in sentences if not sentence.startswith(OF_THE_ATTEMPT)]


def _loaded_fast(file: Path) -> Any:
    try:
        return load(file.read_bytes())
    except yaml.YAMLError:
        return None
