"""Which run on disk a configuration names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.config.command import stored_identity
from launcher.config.identity import changed_keys
from launcher.config.messages import show
from launcher.config.secrets import is_expression
from launcher.config.tree import leaves
from launcher.errors import ConfigError
from launcher.rundir.record_format import IDENTITY_VERSION, read_record

MAX_SHOWN = 5
"""Differences in a message."""


def check_identity(run: Mapping[Any, Any]) -> None:
    """
    Args:
        run: the node `run` of a configuration. A run that it names outright (`run.id=...`) may have any configuration.
    Raises:
        ConfigError: the folder of its id has a run of another configuration.
    """
    known, folder = stored_identity(run), Path(run["dir"])
    if known is None or known[0] != run["id"]:
        return
    try:
        record = read_record(folder / "run.json")
    except (OSError, ValueError):
        return
    if record.get("identity") is None or record.get("identity_version") != IDENTITY_VERSION:
        return
    if different := _differences(record["identity"], known[1]):
        more = ", ..." if len(different) > MAX_SHOWN else ""
        raise ConfigError(
            f"run.dir='{folder}': is of another configuration ({', '.join(different[:MAX_SHOWN])}{more}); "
            "move it away, or start another run of this configuration with run.tag=<word>."
        )


def _differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Each key in which two identities of one id differ, with both values. A value from the environment is stored as
    an expression, so it is not compared."""
    before, after = leaves(stored), leaves(current)
    keys = [
        key
        for key in changed_keys(stored, current)
        if not any(is_expression(str(values.get(key)), key.rpartition(".")[2]) for values in (before, after))
    ]
    return [f"{key}={_shown(before, key)} there, {_shown(after, key)} here" for key in keys]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return show(values[key]) if key in values else "missing"
