"""Changes since a checkpoint was written."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from launcher.config.difference import Differences, diff
from launcher.config.plain_yaml import load
from launcher.config.resolve import unescaped
from launcher.config.sections import AUTO
from launcher.config.tree import get
from launcher.rundir.sources import imported_sources

OF_THE_ATTEMPT = (
    "paths.outputs",
    "run.dir",
    "trainer.pause_at",
    "run.resume",
    "hooks.checkpointing.load",
)
"""Keys that configure one attempt."""
AUTO_KEY = "trainer.micro_batch_size"
SOURCES = "sources.json"
"""The file of a checkpoint with the digests of the user's own source files."""


def changes_since(
    checkpoint: Path,
    config: Mapping[str, Any],
    code: Mapping[str, object],
    ignored: Collection[str] = (),
) -> Differences:
    """Return differences in configuration, code and versions between a checkpoint and now."""
    ignored = {*OF_THE_ATTEMPT, *ignored}
    if get(config, AUTO_KEY) == AUTO:
        # An attempt replaces it by its own number.
        ignored.add(AUTO_KEY)
    changes: Differences = {}
    for name, present in (("config.yaml", config), ("code.yaml", code)):
        if (file := checkpoint / name).exists() and _loaded_fast(file) != present:
            saved: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
            changes |= diff(unescaped(saved), present, ignored=ignored)
    return changes


def with_sources(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a checkpoint, with the source files that this process has imported."""
    sources = imported_sources()
    return {**texts, **({SOURCES: json.dumps(sources, indent=1) + "\n"} if sources else {})}


def stored_sources(checkpoint: Path) -> dict[str, str]:
    """Return the source files that a checkpoint's process had imported, if they can be read."""
    try:
        sources = json.loads((checkpoint / SOURCES).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return (
        {str(name): str(digest) for name, digest in sources.items()}
        if isinstance(sources, dict)
        else {}
    )


def _loaded_fast(file: Path) -> object:
    try:
        return load(file.read_bytes())
    except yaml.YAMLError:
        return None
