"""Answer what is left to do of a run: `remaining`, for all callers. Imports no torch."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from launcher.checkpoint.drift import read_fingerprint
from launcher.checkpoint.find_checkpoint import checkpoint_path, has_checkpoints, has_no_checkpoint
from launcher.checkpoint.store import CheckpointStore
from launcher.config.identity.difference import diff, in_a_line
from launcher.config.identity.lookup import is_same
from launcher.config.run_config import RunConfig
from launcher.config.schema.checks import checkpointing
from launcher.config.schema.declared import declared, parts
from launcher.config.tree import Tree, get, nest
from launcher.errors import ConfigError
from launcher.rundir.data_files import check_fingerprint, describe_changed_files, state_of_files
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import Holder, is_held, read_holder
from launcher.rundir.provenance import is_restart
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.submission import Submission, read_frozen

logger = logging.getLogger("launcher")


@dataclass(frozen=True)
class Done:
    """Nothing: the run is completed, paused where the command pauses it, or past its last step."""

    reason: Literal["completed", "paused", "past"]
    step: int
    last_step: float
    changed_files: Sequence[str] = field(default=(), compare=False)
    """Messages about changed files of its data whose content nobody compares."""

    def __str__(self) -> str:
        if self.reason == "paused":
            return f"paused at step {self.step}"
        if self.reason == "past":
            return f"at step {self.step}, past trainer.max_steps={self.last_step}"
        return "completed"


@dataclass(frozen=True)
class Held:
    """Nothing now: a live process is on the run."""

    holder: Holder | None

    def __str__(self) -> str:
        return f"running: {self.holder or 'another process'}"

    @property
    def is_here(self) -> bool:
        """It runs on this machine. Elsewhere, only a wait shows that it is alive."""
        return self.holder is not None and self.holder.is_local()


@dataclass(frozen=True)
class Queued:
    """Nothing now: a job of the run is in SLURM's queue."""

    job: QueuedJob
    differences: str
    """Differences between the job's configuration and the command's, or an empty text."""

    def __str__(self) -> str:
        details = self.job.state.lower(), self.job.waits_for, self.job.advice
        text = ", ".join(filter(None, details))
        return f"in the queue as job {self.job.id} ({text}){self.differences}"


@dataclass(frozen=True)
class Train:
    """All steps after the newest checkpoint."""

    from_step: int


def remaining(
    config: RunConfig, folder: RunFolder, queue: Mapping[str, QueuedJob] | None = None
) -> Done | Held | Queued | Train:
    """Return what is left to do of a run.

    Args:
        config: what the command requests.
        folder: the run's folder.
        queue: the jobs that have not ended, see `scheduler.queue`.
    Raises:
        ConfigError: the run cannot be resumed as the command requests, or its data have changed.
    """
    with folder.being_read():
        run = RunOnDisk.load(folder)
        is_busy = is_held(folder)
    done = None if run is None else _why_done(with_known_steps(config, run), folder, run)
    if run is not None and done is not None and not (is_busy and done.reason == "past"):
        return replace(done, changed_files=_check_data(config, folder, run))
    if is_busy:
        return Held(read_holder(folder.lock_path))
    queued = find_queued(config, folder, queue or {})
    if queued is not None:
        return queued
    _check_resume(config, folder)
    return Train(folder.newest_step())


# ------------------------------------------------------------------------------------------- done
def _why_done(config: RunConfig, folder: RunFolder, run: RunOnDisk) -> Done | None:
    """Return why a run has nothing left to do, or None, as for a run without a checkpoint."""
    if mode(config) == "never":
        return None
    last = config.trainer.max_steps
    newest = folder.newest_step()
    assert last is not None
    # The run's checkpoints may have been deleted since.
    has_saved = run.record.get("checkpoint") is not None
    if run.recorded_state == "completed" and has_saved and not _asks_for_more(config, last, run):
        return Done("completed", run.step, last)
    pause_at = config.trainer.pause_at
    is_paused = run.recorded_state == "paused" and newest == run.step
    if is_paused and pause_at is not None and pause_at <= newest:
        return Done("paused", run.step, last)
    # Then an extension of the run was stopped, and the command is an earlier one.
    return Done("past", newest, last) if newest > last else None


def _asks_for_more(config: RunConfig, last: float, run: RunOnDisk) -> bool:
    """Return whether the command requests something new of a completed run.

    It may be more steps, an evaluation of the test set or an export, or, if the run stopped early,
    another configuration under which it may train further.
    """
    if last > max(run.step, run.max_steps):
        return True
    for path, hook in parts("hooks", config.stored.get("hooks")).items():
        for key in declared(hook["_target_"], "at_the_end"):
            if hook.get(key) not in (None, run.settings.get(f"{path}.{key}")):
                return True
    return run.step < last and _is_changed(config, run)


def _is_changed(config: RunConfig, run: RunOnDisk) -> bool:
    """Return whether the newest attempt's configuration, as far as it counts, was another one."""
    before = run.settings
    now = config.record["config"]
    return bool(before) and not is_same(nest(before), nest(now))


def counts_epochs(config: RunConfig) -> bool:
    """Return whether the number of steps depends on data that have not been read."""
    return config.trainer.max_epochs is not None and config.trainer.max_steps is None


def with_known_steps(config: RunConfig, run: RunOnDisk) -> RunConfig:
    """Return the configuration with the number of steps, if `trainer.max_epochs` is set.

    The number depends on the data, which are not read here. It is the number of the newest attempt
    if that has completed at least as many epochs of the same training, and unlimited otherwise.
    """
    if not counts_epochs(config):
        return config
    epochs = config.trainer.max_epochs
    earlier = run.settings.get("trainer.max_epochs")
    if run.recorded_state == "completed" and earlier is not None and epochs <= earlier:
        full = config.with_steps(run.max_steps)
        if not _is_changed(full.replace({"trainer.max_epochs": earlier}), run):
            return full
    return config.with_steps(math.inf)


# ----------------------------------------------------------------------------------- queue, resume
def find_queued(
    config: RunConfig, folder: RunFolder, queue: Mapping[str, QueuedJob]
) -> Queued | None:
    """Find the newest job of a folder in SLURM's queue."""
    note = Submission.read(folder)
    if note is None:
        return None
    job = note.find_in(queue)
    if job is None:
        return None
    return Queued(job, _differences(config, folder))


def _differences(config: RunConfig, folder: RunFolder) -> str:
    try:
        before, _ = read_frozen(folder)
    except (OSError, ValueError, KeyError, ConfigError):
        return ""
    stored = {key: value for key, value in config.stored.items() if key in before}
    now = json.loads(json.dumps(stored, default=str))
    of_the_command = "dispatch.wait", "dispatch.dry_run", "run.identity", "run.sweep"
    changes = in_a_line(diff(before, now, ignored=of_the_command))
    if changes:
        return f" with another configuration ({changes}); cancel it to change that"
    return ""


def mode(config: RunConfig) -> str:
    """Return `run.resume`, which is for the first start of a submission."""
    return "auto" if is_restart() else config.run.resume


def _check_resume(config: RunConfig, folder: RunFolder) -> None:
    """Check that training would accept `run.resume`, and resume the checkpoints that there are."""
    store = CheckpointStore(folder.checkpoints)
    resume = mode(config)
    saving = checkpointing(config.plain.get("hooks"))
    if saving is None and (step := folder.newest_step()):
        raise ConfigError(
            "hooks.checkpointing: is missing, and without it the run cannot resume its checkpoint"
            f" of step {step} in {folder.checkpoints}; keep it, or use run.tag=<word> for another"
            " run of the same configuration."
        )
    if resume == "never" and store.steps():
        raise has_checkpoints(store)
    # Elsewhere, only the run itself looks for one.
    is_here = get(saving, "path") in (None, "checkpoints")
    if resume == "must" and is_here and not store.steps():
        raise has_no_checkpoint(store)


# -------------------------------------------------------------------------------------------- data
def data_that_counts(config: RunConfig) -> Tree:
    """Return the settings of the data, without those that cannot change a run's numbers."""
    data = config.stored["data"]
    excluded = config.run.identity_exclude
    return {key: value for key, value in data.items() if f"data.{key}" not in excluded}


def _check_data(config: RunConfig, folder: RunFolder, run: RunOnDisk) -> list[str]:
    """Reject changed training data, as a resume does. They are read only if a file has changed.

    Returns:
        Messages about changed files whose content is not compared.
    """
    before = run.record.get("data_files")
    now = state_of_files(data_that_counts(config))
    newest = checkpoint_path(folder.checkpoints, "latest")
    if newest is None or before in (None, now):
        return []
    stored = read_fingerprint(newest)
    if stored is not None and now is not None:
        from launcher.data.fingerprint import fingerprint_of

        node = json.dumps(data_that_counts(config), default=str)
        check_fingerprint(stored, fingerprint_of(node, now))
    return describe_changed_files(before, now, stored)
