"""Whether a run is complete (or paused) and has nothing left to do. Imports no torch."""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from launcher.checkpoint.changes import changes_since, stored_sources
from launcher.checkpoint.find import checkpoint_path, request_name
from launcher.checkpoint.store import CheckpointStore
from launcher.errors import ConfigError
from launcher.run.folder import RunFolder
from launcher.run.holder import held_here, refusal
from launcher.run.logs import setup_logging
from launcher.run.provenance import VERSIONED, code_state
from launcher.run.record import RunRecord
from launcher.run.sources import imported_sources, source_changes

logger = logging.getLogger("launcher")

NEWEST = ("auto", "latest", "must")
"""Values of `run.resume` that mean the newest checkpoint."""


def nothing_to_do(config: Mapping[str, Any]) -> bool:
    """Whether the run is complete or paused, and the command asks for nothing more; then this is logged.

    Args:
        config: resolved, as plain containers: a repeated sweep asks for thousands of runs.
    Raises:
        ConfigError: another process of this machine is working on it. This saves building a trainer; the lock decides.
    """
    folder = RunFolder(config["run"]["dir"])
    record = RunRecord(folder) if folder.record_path.exists() else None
    if record is not None and record.state == "completed" and not asks_for_more(config, folder, record):
        setup_logging(None)
        logger.info("%s is complete already (step %d): nothing to do.", folder.path, record.step)
        for sentence in changes(config, folder):
            logger.warning("Changed since it was trained: %s", sentence)
        logger.info("To train it again as another run, use run.tag=<word>.")
        return True
    if record is not None and is_paused_there(config, folder, record):
        setup_logging(None)
        logger.info("%s is paused at step %d already: nothing to do.", folder.path, record.step)
        logger.info("A later trainer.pause_at, or none, resumes it.")
        return True
    if held := held_here(folder):
        raise ConfigError(refusal(folder, held))
    return False


def is_paused_there(config: Mapping[str, Any], folder: RunFolder, record: RunRecord) -> bool:
    """Whether a run is paused, and the command asks for no later step."""
    pause_at = config["trainer"].get("pause_at")
    if record.state != "paused" or pause_at is None or str(config["run"]["resume"]) not in NEWEST:
        return False
    return bool(pause_at <= folder.newest_step() == record.step)


def asks_for_more(config: Mapping[str, Any], folder: RunFolder, record: RunRecord) -> bool:
    """Whether the command asks a completed run for more steps, or for a rollback that it has not made yet."""
    if config["trainer"]["max_steps"] > max(record.step, record.data["max_steps"] or 0):
        return True
    resume = str(config["run"]["resume"])
    if resume in NEWEST:
        return False
    newest = checkpoint_path(folder.checkpoints, "latest")
    if resume == "never" or newest is None:
        return True
    branch = CheckpointStore(folder.checkpoints).rollbacks()[-1:]
    return request_name(folder.checkpoints, resume) not in (newest.name, *branch)


@cache
def _code() -> dict[str, Any]:
    """The state of the code. Cached: a repeated sweep needs it for each of its runs."""
    return code_state(also=VERSIONED)


def changes(config: Mapping[str, Any], folder: RunFolder) -> list[str]:
    """Sentences for changes of configuration and code since a run was completed, if they can change its numbers."""
    newest = checkpoint_path(folder.checkpoints, "latest")
    if newest is None:
        return []
    ignored = tuple(f"{key}{end}" for key in ("run", *config["run"]["not_identity"]) for end in (".", "=", ":"))
    sentences = changes_since(newest, dict(config), _code())
    gone = [text for text in sentences if text.endswith("is gone.")]
    unused = [text for text in sentences if text.startswith("versions.") and text.endswith("is new.")]
    kept = [text for text in sentences if not text.startswith(ignored) and text not in (*gone, *unused)]
    stored = stored_sources(newest)
    imported = {name: digest for name, digest in imported_sources().items() if name in stored}
    return kept + source_changes(stored, imported)
