"""The files of a submission: frozen configurations, and the lists from which jobs read runs.

<run folder>/submission.json     all that the job reads: the resolved configuration, Hydra's node,
                                 and the script of its job
<outputs>/.slurm/<submission>/   job-0.sh, job-0.id and runs-0.txt of each array (its id, and a run
                                 folder per run), *.sh (their functions), the snapshot of the code
<outputs>/.slurm/run.lock        exists while a command submits

submission.json is written before sbatch is called, and job-0.id after it. SLURM's queue lists each
job with its script, so the jobs of a command that was killed in between are found. A job exits if
its run's submission.json names another script.
"""

import json
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from launcher.config.identity.record_entry import command_record
from launcher.config.tree import with_text_keys, with_typed_keys
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.process.files import read_file, remove_empty, replace_file
from launcher.rundir.folder import RunFolder, is_copy
from launcher.rundir.lock import RunLock
from launcher.rundir.lock_holder import read_holder
from launcher.rundir.record import RunRecord
from launcher.rundir.signing import record_signature
from launcher.slurm import scheduler
from launcher.slurm.sbatch import GUARD, runs_path
from launcher.slurm.scheduler import QueuedJob, SchedulerError

FROZEN = "submission.json"
PAUSE = 0.2
"""Seconds between two tries to get the lock of submissions."""


class SubmissionsFolder(RunFolder):
    """The hidden folder of all submissions, below the outputs."""

    key = "paths.outputs"
    elsewhere = "use another folder"


@contextmanager
def one_at_a_time(outputs: Path) -> Iterator[None]:
    """Hold a lock while SLURM's queue is read and runs are submitted.

    The second of two commands then sees the jobs of the first. The lock of a killed command is
    taken over.
    """
    outputs = outputs.absolute()
    existing = {path for path in (outputs, *outputs.parents) if path.exists()}
    lock = RunLock(SubmissionsFolder(outputs / ".slurm"))
    try:
        _acquire(lock)
        yield
    finally:
        lock.release()
        remove_empty(
            *(
                path
                for path in (lock.path.parent, outputs, *outputs.parents)
                if path not in existing
            )
        )


def _acquire(lock: RunLock) -> None:
    """Wait for the lock; say once who holds it."""
    is_reported = False
    while lock.holder is None:
        try:
            lock.acquire()
        except ConfigError as error:
            # Another command may remove the empty folder, even while mkdir checks whether the
            # existing path is a folder.
            was_removed = isinstance(error.__cause__, FileNotFoundError | FileExistsError)
            is_blocked = not lock.path.parent.is_dir() and os.path.lexists(lock.path.parent)
            if is_blocked or (error.__cause__ is not None and not was_removed):
                raise
            holder = None if was_removed else read_holder(lock.path)
            if holder is not None and not is_reported:
                text = f"Waiting for {holder}, which is submitting runs."
                print(text, file=sys.stderr, flush=True)
                is_reported = True
            signals.check()
            time.sleep(PAUSE)


LIMIT = re.compile("MaxSubmit|GrpSubmit|MaxJob")
"""Limits of the number of jobs by SLURM's names, such as AssocMaxSubmitJobLimit."""


@dataclass
class Submission:
    """A run's newest job.

    `script` and `task` (its index in an array) are known before SLURM has the job, and `job_id`
    only afterwards.
    """

    script: str
    task: int | None = None
    job_id: str | None = None

    @classmethod
    def read(cls, folder: RunFolder) -> "Submission | None":
        """Read the note.

        Returns:
            None if the run was not submitted, or if its folder is a copy, whose job is the
            original's.
        """
        try:
            saved = json.loads(read_file(folder.path / FROZEN))
            note = cls(**{field.name: saved["job"].get(field.name) for field in fields(cls)})
            if is_copy(folder.path, saved.get("folder")):
                return None
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            return None
        if note.job_id is None and note.script:
            with suppress(OSError):
                job = id_path(Path(note.script)).read_text().strip()
                note.job_id = job if note.task is None else f"{job}_{note.task}"
        return note

    def find_in(self, queue: Mapping[str, QueuedJob]) -> QueuedJob | None:
        """Return the job in SLURM's queue, unless the job of this id has another script."""
        if self.job_id is not None:
            job = queue.get(self.job_id)
            if job is not None and job.script == self.script:
                return job
            return None
        jobs = (job for job in queue.values() if (job.script, job.task) == (self.script, self.task))
        return next(jobs, None)


def freeze(
    folder: RunFolder,
    config: Mapping[str, object],
    hydra: Mapping[str, object] | None,
    note: Submission | None,
    snapshot: Path | None = None,
) -> None:
    """Write the job's configuration into its folder, and `queued` into its run.json, without torch.

    Args:
        folder: folder of the run, or of a job that does not train, see
        `launcher.dispatch.skip_reasons`.
        config: resolved, as plain containers (see `schema.validate`).
        hydra: Hydra's node as plain containers, interpolations unresolved.
        note: its job, or None if a script started it without SLURM.
        snapshot: the folder of its code, or None if it runs the code of the current folder.
    """
    folder.create()
    code = {
        "folder": str(folder.path.absolute()),
        "cwd": os.getcwd(),
        "snapshot": None if snapshot is None else str(snapshot),
    }
    saved = {
        "config": with_text_keys(config),
        "hydra": hydra,
        "job": None if note is None else asdict(note),
        **code,
    }
    saved["signature"] = record_signature(FROZEN, saved)
    # The frozen configuration is written before run.json, since a `queued` run has a job.
    replace_file(folder.path / FROZEN, json.dumps(saved, default=str).encode())
    RunRecord(folder).queue(command_record(config, hydra))


def read_frozen(folder: RunFolder) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Read the configuration and Hydra's node, as `freeze` got them.

    Raises:
        OSError, ValueError: the file is missing or broken.
        ConfigError: it was submitted with other runs of its job.
    """
    saved = json.loads(read_file(folder.path / FROZEN))
    # An earlier version had this key.
    count = (saved["config"].get("dispatch") or {}).pop("runs_per_job", 1)
    if count != 1:
        raise ConfigError(
            f"'{folder.path}': was submitted with dispatch.runs_per_job={count}, which is left out;"
            " repeat its command without it."
        )
    return with_typed_keys(saved["config"]), saved["hydra"]


def frozen_code(folder: RunFolder) -> tuple[str | None, str | None]:
    """Return the folder in which the command was typed, and the folder of its snapshot."""
    saved = json.loads(read_file(folder.path / FROZEN))
    return saved.get("cwd"), saved.get("snapshot")


def queue_of(folders: Iterable[RunFolder]) -> dict[str, QueuedJob]:
    """Return the jobs that have not ended, or raise `NotAnswered`."""
    queue = scheduler.queue(folder.path / FROZEN for folder in folders)
    if queue is None:
        raise NotAnswered(
            "dispatch=slurm: squeue does not answer; run this on a machine of the cluster, or use"
            " dispatch=local."
        )
    return queue


class NotNow(ConfigError):
    """SLURM does not take a job now, but may later. `why` follows SLURM in a sentence."""

    why = "does not answer"


class NotAnswered(NotNow):
    """SLURM did not answer."""


class MaybeSubmitted(NotAnswered):
    """Neither sbatch nor squeue answered."""

    why = "does not answer, and may have them all the same"

    def __init__(self, message: str):
        super().__init__(
            f"dispatch=slurm: {message}, nor does squeue answer, so SLURM may have the job all the"
            " same; repeat the command when SLURM answers. A job that it does not find fails at its"
            " start, since its files are removed."
        )


class LimitReached(NotNow):
    """SLURM accepts no more jobs of the user for now.

    Args:
        limit: SLURM's name of the limit.
        count: the number of runs for which it has no room.
    """

    def __init__(self, limit: str, count: int = 1):
        waiting = f"{count} runs wait" if count > 1 else "the run waits"
        super().__init__(
            f"dispatch=slurm: {limit}: {waiting}; repeat the command when other jobs have ended."
        )
        self.limit = limit
        self.why = f"has no room ({limit})"


def hand_over(script: Path) -> str:
    """Submit a script; return the job's id, which is written next to it."""
    job = _submit(script)
    # The file is not needed, since SLURM has the job, and its queue names the script.
    with suppress(OSError):
        replace_file(id_path(script), f"{job}\n".encode())
    return job


def id_path(script: Path) -> Path:
    return script.with_suffix(".id")


def _submit(script: Path) -> str:
    try:
        return scheduler.submit(script)
    except SchedulerError as error:
        # SLURM may have accepted the job although we got no answer.
        queue = scheduler.queue()
        jobs = [job for job in (queue or {}).values() if job.script == str(script)]
        if jobs:
            return jobs[0].id.partition("_")[0]
        message = sbatch_message(error)
        if isinstance(error, scheduler.NoAnswer) and queue is None:
            raise MaybeSubmitted(message) from None
        if LIMIT.search(message):
            raise LimitReached(message.partition(" Batch job submission failed")[0]) from None
        if isinstance(error, scheduler.NoAnswer):
            raise NotAnswered(f"dispatch=slurm: {message}; repeat the command later.") from None
        raise ConfigError(f"dispatch=slurm: {message}; see dispatch.dry_run=true.") from None


def sbatch_message(error: Exception) -> str:
    match = re.search(r"sbatch: error:.*", str(error), re.DOTALL)
    text = match[0].replace("sbatch: error:", "") if match else str(error)
    return " ".join(text.split())[:400].rstrip(".")


def new_submission(outputs: Path) -> Path:
    """Make a folder for this submission, hidden from run listings."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    folder = outputs.absolute() / ".slurm" / name
    with SubmissionsFolder(folder).explain_write_errors():
        folder.mkdir(parents=True)
    return folder


@contextmanager
def undone_on_failure(folders: Sequence[RunFolder]) -> Iterator[None]:
    before = {folder: _files(folder) for folder in folders}
    try:
        yield
    except BaseException:
        for folder in folders:
            _restore(folder, before[folder])
        raise


def _files(folder: RunFolder) -> dict[Path, bytes | None] | None:
    """Return the content of the files that `freeze` writes, or None if the folder is empty."""
    if not folder.path.is_dir() or not any(folder.path.iterdir()):
        return None
    paths = (folder.record_path, folder.path / FROZEN)
    return {path: path.read_bytes() if path.exists() else None for path in paths}


def _restore(folder: RunFolder, files: dict[Path, bytes | None] | None) -> None:
    if files is None:
        shutil.rmtree(folder.path, ignore_errors=True)
        remove_empty(folder.path.parent)
    for path, data in (files or {}).items():
        if data is None:
            path.unlink(missing_ok=True)
        elif path.read_bytes() != data:
            replace_file(path, data)


def write_script(script: Path, text: str, runs: Sequence[RunFolder]) -> None:
    """Write a job's script, and the run folders in the order of the array's tasks."""
    with SubmissionsFolder(script.parent).explain_write_errors():
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
        # A job of this submission that has started already may be reading it.
        if not (functions := script.with_name(GUARD.name)).exists():
            replace_file(functions, GUARD.read_bytes())
        runs_path(script).write_text("".join(f"{os.path.abspath(run)}\n" for run in runs))
