"""Detect completed (or paused) runs, which have nothing left to do. Imports no torch."""

import logging
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

from launcher.checkpoint.changes import changes_since, stored_sources
from launcher.checkpoint.find import (
    checkpoint_path,
    find_checkpoint,
    has_checkpoints,
    has_no_checkpoint,
    request_name,
)
from launcher.checkpoint.store import CheckpointStore
from launcher.config.checks import has_checkpointing
from launcher.config.command import command_record, task_overrides
from launcher.config.lanes import without_effect
from launcher.config.length import with_steps
from launcher.config.lookup import is_same
from launcher.config.tree import get, nested
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.holder import held_here, rejection
from launcher.rundir.logs import setup_logging
from launcher.rundir.provenance import VERSIONED, code_state
from launcher.rundir.record import RunRecord
from launcher.rundir.sources import imported_sources, source_changes
from launcher.trackers.base import is_tracker

logger = logging.getLogger("launcher")

ADDED = re.compile(r"tracker\.\w+|hooks\.\w+\.metrics\.\w+")
"""Keys of parts that a completed run can get without training."""
AT_THE_END = "hooks.evaluation.test", "hooks.export.checkpoint"
"""Keys of what a run does once it is trained, also if it was trained without them."""
NEWEST = ("auto", "latest", "must")
"""Values of `run.resume` that mean the newest checkpoint."""


def nothing_to_do(config: Mapping[str, Any]) -> bool:
    """Return whether the run has nothing left to do (see `done`), which is then logged.

    The configuration is resolved and plain, since a repeated sweep checks thousands of runs.
    """
    folder = RunFolder(config["run"]["dir"])
    with folder.being_read():
        record, held = RunRecord(folder) if folder.record_path.exists() else None, held_here(folder)
    reason = None if record is None else done(config, folder, record)
    if held is not None and reason not in ("completed", "paused"):
        raise ConfigError(rejection(folder, held))
    if record is None or reason is None:
        check_saves(config, folder)
        return False
    setup_logging(None)
    if reason == "completed":
        logger.info("%s is complete already (step %d): nothing to do.", folder.path, record.step)
        for message in changes(config, folder):
            logger.warning("Changed since it was trained: %s", message)
        for message in additions(config, record):
            logger.info("%s", message)
        logger.info("To train it again as another run, use run.tag=<word>.")
    elif reason == "paused":
        logger.info("%s is paused at step %d already: nothing to do.", folder.path, record.step)
        logger.info("A later trainer.pause_at, or none, resumes it.")
    else:
        logger.info("%s is %s: nothing to do.", folder.path, past(config, folder))
        logger.info("To train on, use a later trainer.max_steps; run.resume=<step> rolls it back.")
    return True


def why_done(config: Mapping[str, Any]) -> str | None:
    folder = RunFolder(config["run"]["dir"])
    if not folder.record_path.exists():
        return None
    record = RunRecord(folder)
    config = with_known_steps(config, record)
    reason = done(config, folder, record)
    if reason == "paused":
        return f"paused at step {record.step}"
    return past(config, folder) if reason == "past" else reason


def done(
    config: Mapping[str, object], folder: RunFolder, record: RunRecord
) -> Literal["completed", "paused", "past"] | None:
    """Return why the run has nothing left to do, or None, as for a run without a checkpoint.

    Args:
        config: with the number of steps, if `trainer.max_epochs` is set.
        folder: the run's folder.
        record: its run.json.
    """
    # Its checkpoints may have been deleted since.
    has_saved = record.data["checkpoint"] is not None
    if record.state == "completed" and has_saved and not asks_for_more(config, folder, record):
        return "completed"
    if is_paused_there(config, folder, record):
        return "paused"
    return "past" if is_past(config, folder) else None


def is_past(config: Mapping[str, Any], folder: RunFolder) -> bool:
    """Return whether the newest checkpoint is past the command's last step.

    Then an extension of the run was stopped, and the command is an earlier one.
    """
    return (
        str(config["run"]["resume"]) in NEWEST
        and folder.newest_step() > config["trainer"]["max_steps"]
    )


def past(config: Mapping[str, Any], folder: RunFolder) -> str:
    return (
        f"at step {folder.newest_step()}, past trainer.max_steps={config['trainer']['max_steps']}"
    )


def is_paused_there(config: Mapping[str, Any], folder: RunFolder, record: RunRecord) -> bool:
    """Return whether a run is paused, and the command requests no later step."""
    pause_at = config["trainer"].get("pause_at")
    if record.state != "paused" or pause_at is None or str(config["run"]["resume"]) not in NEWEST:
        return False
    return bool(pause_at <= folder.newest_step() == record.step)


def asks_for_more(config: Mapping[str, Any], folder: RunFolder, record: RunRecord) -> bool:
    """Return whether the command requests something new of a completed run.

    It may be more steps, an evaluation of the test set or an export, a rollback that it has not
    made yet, or, if it stopped early, another configuration under which it may train further.
    """
    max_steps, stored = config["trainer"]["max_steps"], record.data["config"]
    if any(get(config, key) not in (None, stored.get(key)) for key in AT_THE_END):
        return True
    if max_steps > max(record.step, record.data["max_steps"] or 0):
        return True
    if record.step < max_steps and is_changed(config, record):
        return True
    resume = str(config["run"]["resume"])
    if resume in NEWEST:
        return False
    newest = checkpoint_path(folder.checkpoints, "latest")
    if resume == "never" or newest is None:
        return True
    branch = CheckpointStore(folder.checkpoints).rollbacks()[-1:]
    return request_name(folder.checkpoints, resume) not in (newest.name, *branch)


def is_changed(config: Mapping[str, Any], record: RunRecord) -> bool:
    """Return whether the newest attempt's configuration, as far as it counts, was another one."""
    before, now = record.data["config"], command_record(config, None)["config"]
    return bool(before) and not is_same(nested(before), nested(now))


def with_known_steps(config: Mapping[str, Any], record: RunRecord) -> Mapping[str, object]:
    """Return the configuration with the number of steps, if `trainer.max_epochs` is set.

    The number depends on the data, which are not read here. It is the number of the newest attempt
    if that has completed at least as many epochs of the same training, and unlimited otherwise.
    """
    epochs = config["trainer"].get("max_epochs")
    if epochs is None:
        return config
    earlier = record.data["config"].get("trainer.max_epochs")
    if record.state == "completed" and earlier is not None and epochs <= earlier:
        known = with_steps(config, record.data["max_steps"] or 0)
        if not is_changed(
            {**known, "trainer": {**known["trainer"], "max_epochs": earlier}}, record
        ):
            return known
    return with_steps(config, math.inf)


@cache
def _code() -> dict[str, object]:
    """Return the state of the code, which a repeated sweep needs for each of its runs."""
    return code_state(also=VERSIONED)


def changes(config: Mapping[str, Any], folder: RunFolder) -> list[str]:
    """List changes of configuration and code, since a run was completed, that change numbers."""
    newest = checkpoint_path(folder.checkpoints, "latest")
    if newest is None:
        return []
    uncounted = without_effect((config.get("trainer") or {}).get("lanes"))
    ignored = tuple(
        f"{key}{end}"
        for key in ("run", *config["run"]["identity_exclude"], *uncounted)
        for end in (".", "=", ":")
    )
    messages = changes_since(newest, dict(config), _code())
    gone = [text for text in messages if text.endswith("is gone.")]
    unused = [
        text for text in messages if text.startswith("versions.") and text.endswith("is new.")
    ]
    kept = [
        text for text in messages if not text.startswith(ignored) and text not in (*gone, *unused)
    ]
    stored = stored_sources(newest)
    imported = {name: digest for name, digest in imported_sources().items() if name in stored}
    return kept + source_changes(stored, imported)


def additions(config: Mapping[str, Any], record: RunRecord) -> Iterator[str]:
    """Explain how to add trackers and metrics that the completed run did not have."""
    keys = sorted(
        {match[0] for key in command_record(config, None)["config"] if (match := ADDED.match(key))}
    )
    new = [
        key
        for key in keys
        if not any(
            stored_key == key or stored_key.startswith(f"{key}.")
            for stored_key in record.data["config"]
        )
    ]
    metrics = [key for key in new if key.startswith("hooks.")]
    trackers = [key.removeprefix("tracker.") for key in new if key not in metrics]
    if metrics:
        yield (
            f"{', '.join(metrics)}: job=evaluate, added to this command, computes it for the last"
            " checkpoint."
        )
    if trackers := [name for name in trackers if is_tracker(config["tracker"][name])]:
        settings = [
            word
            for word in task_overrides()
            if word.startswith(("tracker.", "+tracker.", "++tracker."))
        ]
        outputs = str(config["paths"]["outputs"])
        outputs_option = [] if outputs == "outputs" else ["--outputs", outputs]
        command = [
            str(record.data["id"]),
            f"tracker=[{','.join(trackers)}]",
            *settings,
            *outputs_option,
        ]
        yield f"To copy the run to it: python -m launcher.runs sync {shlex.join(command)}"


def check_saves(config: Mapping[str, object], folder: RunFolder) -> None:
    if not has_checkpointing(config) and (step := folder.newest_step()):
        raise ConfigError(
            "hooks.checkpointing: is missing, and without it the run cannot resume its checkpoint"
            f" of step {step} in {folder.checkpoints}; keep it, or use run.tag=<word> for another"
            " run of the same configuration."
        )


def check_resume(config: Mapping[str, Any]) -> None:
    check_saves(config, RunFolder(config["run"]["dir"]))
    checkpoints, resume = RunFolder(config["run"]["dir"]).checkpoints, str(config["run"]["resume"])
    store = CheckpointStore(checkpoints)
    if resume == "never" and store.steps():
        raise has_checkpoints(store)
    if resume == "must" and not store.steps():
        raise has_no_checkpoint(store)
    if (
        resume not in (*NEWEST, "never")
        and request_name(checkpoints, resume) not in store.rollbacks()[-1:]
    ):
        find_checkpoint(checkpoints, resume, "run.resume", hashes=False)
