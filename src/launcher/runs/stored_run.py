"""A run as its folder describes it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from launcher.config.messages import to_override_text
from launcher.config.schema.lane_rules import without_effect
from launcher.config.schema.metric_direction import Mode, mode_of
from launcher.config.tree import Tree, nest
from launcher.rundir.history import History
from launcher.rundir.lock_holder import ENDED_SILENCE, SILENCE, is_held
from launcher.rundir.metrics_summary import LoggedValue, curve_and_newest
from launcher.rundir.record_format import BestData
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.rundir.signing import is_own_record
from launcher.rundir.user_note import UserNote
from launcher.runs.format import seconds_of
from launcher.slurm.causes import UnrecordedEnd, unrecorded_end
from launcher.slurm.scheduler import CANCELLED, ENDING, QueuedJob
from launcher.slurm.submission import Submission

CANCELLED_JOB = "the SLURM job was cancelled"


@dataclass
class StoredRun(RunOnDisk):
    """A run as its folder describes it.

    Args:
        job: its job in SLURM's queue, set by `join_queue`.
        queue_known: True once SLURM's queue was read, so that a run without a job has none.
        slurm_end: SLURM's last state of a job that has left the queue without a record of its end,
            set by `ask_queue`.
    """

    job: QueuedJob | None = None
    queue_known: bool = False
    slurm_end: str | None = None

    # -------------------------------------------------------------------------------- state and job
    @cached_property
    def state(self) -> str:
        """The state in run.json, corrected by the run's lock and SLURM's queue.

        `stale`: run.json says running or queued, but no process holds the run and no job of it is
        in the queue. `damaged`: run.json cannot be read. `unsupported`: another version of
        Launcher wrote it. A preempted run whose job is in the queue
        is still `preempted`.
        """
        if not self.record:
            return "unsupported" if self.is_unsupported else "damaged"
        if self.unrecorded_end is not None:
            return self.unrecorded_end
        state = self.recorded_state or "new"
        has_ended = self.queue_known and self.job is None and self.last_job_id is not None
        silence = ENDED_SILENCE if has_ended else SILENCE
        if state == "running" and not is_held(self.folder, silence):
            if self.job is None:
                return "stale"
            # The job is suspended, or it starts again.
            return "queued" if self.job.is_pending else "running"
        if state == "queued" and self.job is None and (self.queue_known or self.note is None):
            return "stale"
        return state

    @property
    def unrecorded_end(self) -> UnrecordedEnd | None:
        """The end by SLURM's state of its job."""
        if self.slurm_end is None:
            return None
        return unrecorded_end(self.slurm_end, self.recorded_state)

    @property
    def slurm_reason(self) -> str:
        """SLURM's state of its job, as a reason."""
        if self.slurm_end == CANCELLED:
            return CANCELLED_JOB
        return f"SLURM ended job {self.open_job_id}: {self.slurm_end}"

    @cached_property
    def note(self) -> Submission | None:
        return Submission.read(self.folder)

    @property
    def had_job(self) -> bool:
        return self.note is not None or self.last_job_id is not None

    @property
    def last_job_id(self) -> str | None:
        """The SLURM job of its newest attempt, or None for a copy of an uncompleted run."""
        if self.recorded_state != "completed" and self.is_copied:
            return None
        last = self.attempt.get("slurm_job_id")
        return str(last) if last else None

    @property
    def open_job_id(self) -> str | None:
        """The SLURM job that run.json waits for: the submitted or the newest attempt's."""
        if self.recorded_state == "queued":
            return self._submitted_id
        return self.last_job_id

    @property
    def _submitted_id(self) -> str | None:
        return None if self.note is None else self.note.job_id

    @property
    def job_id(self) -> str | None:
        if self.job is not None:
            return self.job.id
        return self._submitted_id or self.last_job_id

    @property
    def waits_for(self) -> str | None:
        """SLURM's reason why its job does not run yet, or `completing`."""
        if self.job is None:
            return None
        if self.job.state == ENDING:
            return "completing"
        return self.job.waits_for

    @property
    def node(self) -> str | None:
        if self.job is not None and self.job.nodes:
            return self.job.nodes
        return self.attempt.get("host")

    @property
    def users(self) -> list[str]:
        """The users of its attempts, each once, in order."""
        names = [attempt.get("user") for attempt in self.attempts]
        return list(dict.fromkeys(name for name in names if name))

    # ------------------------------------------------------------------------- progress and results
    @property
    def failure(self) -> str | None:
        if self.state != "failed":
            return None
        if self.unrecorded_end is not None:
            return self.slurm_reason
        reason = self.attempt.get("reason") or None
        if reason is None or self.job is None or self.job.state == ENDING:
            return reason
        # A node that SLURM does not miss yet has ended the other ranks.
        return f"{reason}; SLURM job {self.job.id} is still {self.job.state.lower()}"

    @property
    def updated(self) -> float | None:
        """Time of the last write of its record, in seconds since the epoch."""
        try:
            return self.folder.record_path.stat().st_mtime
        except OSError:
            return None

    @property
    def last_step(self) -> object:
        """Its last step; before the first attempt the configuration's, or None if not known."""
        return self.record.get("max_steps") or self.settings.get("trainer.max_steps")

    @property
    def progress(self) -> str:
        """Its step and its last one: `120/300`."""
        return f"{self.record.get('step', 0)}/{self.last_step or '?'}"

    @property
    def best(self) -> BestData:
        """`metric`, `value` and `step` of the best checkpoint; empty if there is none."""
        return self.record.get("best") or {}

    @property
    def judged_by(self) -> tuple[str, Mode] | None:
        """The metric of its best checkpoint, and its direction."""
        if not self.best:
            return None
        metric = str(self.best.get("metric"))
        return metric, mode_of(metric, self.best.get("mode"))

    @property
    def metrics(self) -> dict[str, LoggedValue]:
        logged = self.record.get("logged")
        if logged is None:
            return self._read[1]
        return {name: LoggedValue(*pair) for name, pair in logged["newest"].items()}

    @property
    def loss_curve(self) -> str:
        """The training loss over the whole run as a row of bars."""
        logged = self.record.get("logged")
        return self._read[0] if logged is None else str(logged["curve"])

    @cached_property
    def _read(self) -> tuple[str, dict[str, LoggedValue]]:
        """Read the summary of metrics.jsonl, which run.json has once an attempt has ended."""
        return curve_and_newest(self.folder.metrics_path)

    @cached_property
    def history(self) -> History:
        """The history of all logged values. A long run's file takes a second to read."""
        starts = {
            attempt["number"]: seconds
            for attempt in self.attempts
            if (seconds := seconds_of(attempt.get("started"))) is not None and "number" in attempt
        }
        return History.of(self.folder, starts)

    # -------------------------------------------------------------------------------- configuration
    @cached_property
    def choices(self) -> dict[str, str]:
        """The option of each config group: {"model": "gpt"}."""
        options = self.record.get("choices", {})
        return {group: to_override_text(option) for group, option in options.items()}

    @property
    def written(self) -> UserNote:
        return UserNote.of(self.folder.path, self.settings)

    @property
    def config(self) -> Tree:
        """The configuration, as it is stored (see `launcher.config.compose.resolve.resolved`)."""
        return nest(self.settings)

    def text(self, key: str) -> str | None:
        """Return the value of a dotted key as it is typed on a command line, such as "0.001"."""
        if key in self.settings:
            return to_override_text(self.settings[key])
        return None

    @property
    def is_own(self) -> bool:
        """Return whether this user has signed its command and configuration."""
        return is_own_record("run.json", self.record)

    @property
    def has_foreign_checkpoints(self) -> bool:
        """Return whether `checkpoints` is a link to a place that this user's signature lacks."""
        return self.folder.has_foreign_checkpoints(self.settings if self.is_own else {})

    @property
    def overrides(self) -> list[str]:
        return self.record.get("overrides") or []

    @property
    def identity_exclude(self) -> list[str]:
        """Keys that change no numbers, also by what the classes of its parts declared."""
        keys = self.settings.get("run.identity_exclude")
        named = [str(key) for key in keys] if isinstance(keys, list) else []
        named += self.record.get("uncounted") or []
        return named + sorted(without_effect(self.settings.get("trainer.lanes")))


StoredRuns = Sequence[StoredRun]


def count_states(runs: Iterable[StoredRun]) -> str:
    """Count runs by state: `4 completed, 1 failed`."""
    counts = Counter(run.state for run in runs)
    return ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
