"""Changes since a checkpoint was written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from launcher.config.identity import drift
from launcher.config.plain_yaml import load
from launcher.config.run_config import stored_tree
from launcher.rundir.provenance import MACHINE
from launcher.rundir.sources import imported_sources, source_changes

OF_THE_ATTEMPT = (
    "paths.outputs",
    "run.dir",
    "trainer.pause_at",
    "run.resume",
    "hooks.checkpointing.load",
    "trainer.micro_batch_size='auto'",
)
"""Keys that configure one attempt, and a value that an attempt replaces by its own."""
SOURCES = "sources.json"
"""The file of a checkpoint with the digests of the user's own source files."""


def changes_since(checkpoint: Path, config: dict[str, Any], code: dict[str, object]) -> list[str]:
    """Return differences in configuration, code and versions between a checkpoint and now."""
    messages: list[str] = []
    for name, present in (("config.yaml", config), ("code.yaml", code)):
        if (file := checkpoint / name).exists() and _loaded_fast(file) != present:
            messages += drift(stored_tree(file), present)
    return [message for message in messages if not message.startswith(OF_THE_ATTEMPT)]


def environment_changes(checkpoint: Path, texts: Mapping[str, str]) -> list[str]:
    """Return differences in code, versions, machine and data between a checkpoint and now."""
    messages = source_changes(stored_sources(checkpoint), imported_sources())
    for name in ("code.yaml", MACHINE):
        saved = yaml.safe_load((checkpoint / name).read_bytes())
        messages += drift(saved, yaml.safe_load(texts[name]))
    # A library that has not been imported has no version.
    ends = ("is new.", "is gone.")
    return [text for text in messages if not (text.startswith("versions.") and text.endswith(ends))]


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
