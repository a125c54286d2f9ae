"""Trials as SLURM jobs.

They outlive the search, and the same command finds them again in SLURM's queue. A trial has ended
once its run has completed, or its job has left the queue.
"""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.config.construct import construct
from launcher.config.run_config import RunConfig
from launcher.dispatch.jobs import Job
from launcher.dispatch.slurm import SlurmDispatch
from launcher.dispatch.slurm.waiting import is_open
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import is_held
from launcher.rundir.record import RunRecord
from launcher.runs.slurm_jobs import join_queue
from launcher.runs.stored_run import StoredRun
from launcher.search.local_runner import CANCELLED, Runner
from launcher.slurm import scheduler, snapshot, submission
from launcher.slurm.not_started import last_line
from launcher.slurm.scheduler import ENDING, NoAnswer, QueuedJob
from launcher.slurm.submission import FROZEN, Submission

RETRY = 30.0
"""Seconds until trials that SLURM rejected during a search are submitted again."""
FAILED, STOPPED = 1, 143
"""Exit codes of trials."""


@dataclass
class Submitted:
    """A trial's job, which was in the queue at the last check."""

    folder: RunFolder
    job_id: str | None
    phase: str = ""
    """pending, running or preempted."""
    is_stopped: bool = False
    """The search has stopped the trial."""
    is_cancelled: bool = False
    """SLURM has got the cancellation."""
    was_ending: bool = False
    """The job was already ending when the search began. If it was cancelled, that was before the
    search."""

    @property
    def log(self) -> Path:
        return self.folder.logs / f"slurm-{self.job_id}.log"


@dataclass
class SlurmRunner(Runner):
    """Trains trials as SLURM jobs."""

    poll = 2.0

    outputs: Path
    study: str
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.due: dict[int, Job] = {}
        """Trials that SLURM does not have yet."""
        self.submitted: dict[int, Submitted] = {}
        self.latest: dict[int, Submitted] = {}
        """The newest job of each trial."""
        self.missing: dict[str, int] = {}
        self.code: Path | None = None
        self.retry_at = 0.0
        self.is_rejected = False
        self.is_silent = False

    # -------------------------------------------------------------------------------- what is begun
    def adopt(self, runs: Mapping[int, str]) -> None:
        """Take over the jobs that an earlier search has submitted, by `<run.name>/<run.id>`."""
        notes = {
            number: Submission.read(RunFolder(self.outputs / run)) for number, run in runs.items()
        }
        if not any(notes.values()):
            return
        queue = submission.queue_of(RunFolder(self.outputs / run) for run in runs.values())
        for number, note in notes.items():
            if note is not None and (job := note.find_in(queue)) is not None:
                folder = RunFolder((self.outputs / runs[number]).absolute())
                self._register(number, Submitted(folder, job.id, was_ending=job.state == ENDING))
                self._report_phase(number, StoredRun.read(folder.path), job)

    def start(self, number: int, config: RunConfig) -> None:
        self.due[number] = Job(config)

    def describe_start(self, step: int) -> str:
        if step:
            return f"is being submitted to resume at step {step}"
        return "is being submitted"

    def flush(self) -> None:
        """Submit the trials that were started, several as one array."""
        groups: dict[str, list[int]] = {}
        for number, run in self.due.items():
            groups.setdefault(str(run.plain["dispatch"]), []).append(number)
        for numbers in groups.values():
            try:
                error = self._submit(numbers)
            except ConfigError as rejection:
                error = rejection
            if error is not None:
                if not self.latest:
                    raise error
                self._postpone(error)
                return
        self.is_rejected = False

    def _submit(self, numbers: Sequence[int]) -> ConfigError | None:
        runs = [self.due[number] for number in numbers]
        dispatch: SlurmDispatch = construct(runs[0].plain["dispatch"])
        if dispatch.snapshot and self.code is None:
            self.code = snapshot.take(submission.new_submission(runs[0].outputs))
        error = dispatch.submit(runs, self.code)
        if not self.latest and error is None:
            dispatch.warn(runs)
        for number, run in zip(numbers, runs, strict=True):
            if not run.is_unsubmitted:
                note = Submission.read(run.folder)
                del self.due[number]
                self._register(number, Submitted(run.folder, None if note is None else note.job_id))
        return error

    def _postpone(self, error: ConfigError) -> None:
        """Try again later, since SLURM may be busy, or the user's limit of jobs may be reached."""
        self.retry_at = self.clock() + RETRY
        if not self.is_rejected:
            self.say(f"Not submitted yet: {format_trials(self.due)}. {error.messages[0]}")
        self.is_rejected = True

    def _register(self, number: int, trial: Submitted) -> None:
        self.submitted[number] = trial
        self.latest[number] = trial

    # ---------------------------------------------------------------------------- what has happened
    def running(self) -> set[int]:
        """The trials that were started and that `reap` has not returned."""
        return {*self.due, *self.submitted}

    def reap(self) -> dict[int, int]:
        """Return the exit codes of the trials that have ended since the last call."""
        if self.due and self.clock() >= self.retry_at:
            self.flush()
        if not self.submitted:
            return {}
        queue = scheduler.queue(trial.folder.path / FROZEN for trial in self.submitted.values())
        self._report_silence(queue is None)
        self._cancel()
        stored = {
            number: StoredRun.read(trial.folder.path) for number, trial in self.submitted.items()
        }
        join_queue(stored.values(), queue)
        codes: dict[int, int] = {}
        for number, run in stored.items():
            if not is_open(run.label, run, queue, self.missing):
                codes[number] = self._exit_code(self.submitted.pop(number), run)
            elif run.job is not None:
                self.submitted[number].job_id = run.job.id
                self.submitted[number].was_ending &= run.job.state == ENDING
                self._report_phase(number, run, run.job)
        return codes

    def _exit_code(self, trial: Submitted, run: StoredRun) -> int:
        state = run.record.get("state")
        could_say = state not in ("queued", "running", "preempted") or is_held(trial.folder)
        if not could_say:
            run.slurm_end = scheduler.CANCELLED if trial.is_stopped else slurm_end(trial)
            end = run.unrecorded_end
            if end is not None:
                record = RunRecord(trial.folder)
                record.revise(end, reason=run.slurm_reason, slurm_job_id=trial.job_id)
                state = end
        if state in ("completed", "paused"):
            return 0
        if state == "cancelled" and not trial.was_ending:
            return CANCELLED
        return STOPPED if state in ("preempted", "cancelled") else FAILED

    def why(self, number: int, code: int) -> str:
        """Explain why a trial failed, if its run has no reason."""
        trial = self.latest[number]
        text = f"SLURM job {trial.job_id} left the queue without a reason"
        says = last_line(trial.log)
        return f"{text}: {says}" if says else text

    def _report_phase(self, number: int, run: StoredRun, job: QueuedJob) -> None:
        trial = self.submitted[number]
        was_preempted = run.record.get("state") == "preempted"
        waiting = "preempted" if was_preempted else "pending"
        phase = waiting if job.is_pending else "running"
        if phase == trial.phase:
            return
        trial.phase = phase
        details = ", ".join(filter(None, (job.waits_for, job.advice)))
        reason = f" ({details})" if details else ""
        text = {
            "pending": f"is pending as SLURM job {job.id}{reason}",
            "running": f"runs on {job.nodes} as SLURM job {job.id}",
            "preempted": (
                f"was preempted at step {run.record.get('step')}; SLURM job {job.id} is"
                f" pending{reason}"
            ),
        }
        self.say(f"trial {number}: {text[phase]}")

    def _report_silence(self, is_silent: bool) -> None:
        if is_silent and not self.is_silent:
            self.say("SLURM does not answer; the search waits for it.")
        self.is_silent = is_silent

    # ------------------------------------------------------------------------------ what is stopped
    def stop(self, numbers: Sequence[int]) -> None:
        """Let trials save and end."""
        for number in numbers:
            self.due.pop(number, None)
            if number in self.submitted:
                self.submitted[number].is_stopped = True
        self._cancel()

    def _cancel(self) -> None:
        """Cancel the jobs of stopped trials, at the next check if SLURM does not answer."""
        for trial in self.submitted.values():
            if trial.is_stopped and not trial.is_cancelled and trial.job_id is not None:
                with suppress(NoAnswer):
                    scheduler.cancel([trial.job_id])
                    trial.is_cancelled = True

    def close(self) -> None:
        """Leave the jobs in the queue."""
        if self.submitted:
            self.say(
                f"Left in SLURM's queue: {format_trials(self.submitted)}. The same command"
                f" continues the study; python -m launcher.runs cancel run.sweep={self.study}"
                f" --outputs={shlex.quote(str(self.outputs))} cancels them."
            )


def format_trials(numbers: Iterable[int]) -> str:
    return ", ".join(f"trial {number}" for number in sorted(numbers))


def slurm_end(trial: Submitted) -> str | None:
    """Return SLURM's last state of a job that has left the queue, if SLURM knows it."""
    note = Submission.read(trial.folder)
    if trial.job_id is None or note is None:
        return None
    has_started = trial.phase != "pending"
    ends = scheduler.find_ends({(trial.job_id, note.script): has_started})
    return ends.get((trial.job_id, note.script))
