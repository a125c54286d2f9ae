"""Changes since a checkpoint was written that may change the numbers."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import yaml

from launcher.config.identity.difference import ABSENT, describe, diff, is_within
from launcher.config.plain_yaml import load
from launcher.config.run_config import read_tree
from launcher.config.schema.hook_dependencies import COUNTING, uncounted_keys
from launcher.config.schema.lane_rules import without_effect
from launcher.config.settings import AUTO
from launcher.config.tree import Node, get, pick
from launcher.process.files import read_file
from launcher.rundir.imported_sources import digest_imported_sources, source_changes
from launcher.rundir.provenance import MACHINE

ATTEMPT_KEYS = (
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
    config: Node,
    code: Mapping[str, object],
    sources: Mapping[str, str],
    ignored: Collection[str] = (),
) -> list[str]:
    """Return what may change the numbers since a checkpoint: configuration, code and versions.

    A library that is new was imported or installed since, and does not count.

    Args:
        checkpoint: the folder of the checkpoint.
        config: the current resolved configuration.
        code: the current commit and versions.
        sources: the digests of the user's own source files, see `digest_imported_sources`.
        ignored: further keys that do not count.
    """
    ignored = {*ATTEMPT_KEYS, *ignored, *uncounted_keys(*pick(config, COUNTING))}
    ignored |= without_effect(get(config, "trainer.lanes"))
    if get(config, AUTO_KEY) == AUTO:
        # An attempt replaces it by its own number.
        ignored.add(AUTO_KEY)
    messages: list[str] = []
    for name, current in (("config.yaml", config), ("code.yaml", code)):
        if (file := checkpoint / name).exists() and _load_fast(file) != current:
            changes = diff(read_tree(file), current, ignored=ignored)
            messages += describe(
                {
                    key: values
                    for key, values in changes.items()
                    if not (is_within(key, {"versions"}) and values[0] is ABSENT)
                }
            )
    return messages + source_changes(read_sources(checkpoint), sources)


def read_fingerprint(checkpoint: Path) -> object:
    """Return the fingerprint of a checkpoint's training data, or None if it has none."""
    try:
        state = json.loads(read_file(checkpoint / "state.json", follow=True))
        return state["training_state"]["data_loader"]["dataset"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def environment_changes(checkpoint: Path, texts: Mapping[str, str]) -> list[str]:
    """Return differences in code, versions, machine and data between a checkpoint and now.

    Args:
        checkpoint: the folder of the checkpoint.
        texts: the small files of the current attempt's checkpoints.
    """
    config, code, machine = (load(texts[name]) for name in ("config.yaml", "code.yaml", MACHINE))
    ignored = {*config, *(load(read_file(checkpoint / "config.yaml", follow=True)) or {})}
    # A library that only the other process has imported does not count.
    before = load(read_file(checkpoint / "code.yaml", follow=True))
    code["versions"] = before["versions"] | code["versions"]
    messages = changes_since(checkpoint, config, code, digest_imported_sources(), ignored)
    return messages + describe(diff(load(read_file(checkpoint / MACHINE, follow=True)), machine))


def with_sources(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a checkpoint, with the source files that this process has imported."""
    sources = digest_imported_sources()
    return {**texts, **({SOURCES: json.dumps(sources, indent=1) + "\n"} if sources else {})}


def read_sources(checkpoint: Path) -> dict[str, str]:
    """Return the source files that a checkpoint's process had imported, if they can be read."""
    try:
        sources = json.loads(read_file(checkpoint / SOURCES, follow=True))
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(sources, dict):
        return {str(name): str(digest) for name, digest in sources.items()}
    return {}


def _load_fast(file: Path) -> object:
    try:
        return load(read_file(file, follow=True))
    except yaml.YAMLError:
        return None
