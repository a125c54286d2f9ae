"""The run record, `run.json`: the state of a run, and how each attempt at it ended.

Only rank 0 writes it, and only while it holds the run's lock. Every write replaces the whole file,
so a reader never sees half a record and `kill -9` leaves the previous one. A run resumes from its
checkpoints, never from this file.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, cast

from launcher.process.files import find_unused_name, patiently, replace_file
from launcher.process.users import this_user
from launcher.rundir import metrics_summary
from launcher.rundir.folder import RunFolder
from launcher.rundir.provenance import code_that_trains, slurm_job_id, versions
from launcher.rundir.record_format import (
    ATTEMPT_KEYS,
    FORMAT_VERSION,
    IDENTITY_VERSION,
    RECORD_FIELDS,
    AttemptData,
    BestData,
    Outcome,
    RecordData,
    TrainedData,
    TrialData,
    iso,
    plain_number,
)
from launcher.rundir.run_on_disk import load_record
from launcher.rundir.signing import record_signature
from launcher.rundir.training_history import Settings, difference, newest_settings

logger = logging.getLogger(__name__)


FIRST_WRITE_SECONDS = 1.0
"""Seconds from the beginning of an attempt to the first write of its progress."""


def seconds_up() -> float:
    """Return seconds of a clock that cannot be set, with the time of suspension if it counts."""
    return (
        time.clock_gettime(time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic()
    )


class RunRecord:
    """Writes one `run.json`.

    Args:
        clock: gives seconds since the epoch.
        timer: gives seconds since some moment. A clock that is set back while a run trains would
            give it a negative duration.
        interval: minimum seconds between two writes of `progress`, except in an attempt's first
            seconds. Each is an fsync, which would slow down a loop of millisecond steps.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        check_lock: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = seconds_up,
        interval: float = 10.0,
    ):
        self.folder, self.path = folder, folder.record_path
        self.check_lock = check_lock
        self.clock, self.timer = clock, timer
        self._began_at = 0.0
        self._began = 0.0
        self.interval = interval
        self.written_at: float | None = None
        self.data: RecordData = {
            **cast(RecordData, dict.fromkeys(RECORD_FIELDS)),
            "format_version": FORMAT_VERSION,
            "id": folder.path.name,
            "name": folder.path.parent.name,
            "step": 0,
            "versions": {},
            "trials": [],
            "attempts": [],
            "choices": {},
            "config": {},
        }
        self._damage: str | None = None
        """Problem with the file, until it is set aside and replaced."""
        with suppress(FileNotFoundError):
            record, self._damage = load_record(folder)
            self.data.update({**record, "format_version": FORMAT_VERSION})
        if self._damage is not None:
            self.data["step"] = folder.newest_step()

    @property
    def state(self) -> str | None:
        """The state, or None before the first attempt."""
        return self.data["state"]

    @property
    def step(self) -> int:
        return self.data["step"]

    @property
    def attempts(self) -> list[AttemptData]:
        return self.data["attempts"]

    @property
    def attempt(self) -> AttemptData:
        """The newest attempt; empty if there was none."""
        return self.attempts[-1] if self.attempts else {}

    @property
    def next_number(self) -> int:
        return self.attempts[-1]["number"] + 1 if self.attempts else 1

    def begin_attempt(
        self,
        *,
        start_step: int,
        max_steps: int,
        world_size: int,
        strategy: str,
        launched: float | None = None,
        machine: str | None = None,
        micro_batch_size: int | None = None,
        command: RecordData | None = None,
        data_files: str | None = None,
        settings: Settings | None = None,
        trained: TrainedData | None = None,
        code: Mapping[str, Any] | None = None,
    ) -> int:
        """Open an attempt that resumes from `start_step`; returns its number (1 for the first).

        An earlier attempt that never closed was killed: the caller holds the run's lock, so nobody
        else is on it. `command` is from `launcher.config.identity.record_entry`, `data_files` from
        `launcher.rundir.data_files`. `settings` and `trained` decide the numbers of its steps (see
        `launcher.rundir.training_history`). `code` is from `provenance.code_state`.
        """
        self._began_at, self._began = self.clock(), self.timer()
        self._close_killed()
        self._forget_after(start_step)
        if settings is not None:
            trained = {**difference(newest_settings(self.attempts), settings), **(trained or {})}
        added: AttemptData = {"start_step": start_step, "world_size": world_size}
        added |= {"machine": machine, "micro_batch_size": micro_batch_size, "trained": trained}
        added["queued"] = self._find_queued_time()
        added["launched"] = None if launched is None else iso(launched)
        self._add_attempt(self._began_at, **added)
        begun: RecordData = {"state": "running", "step": start_step, "max_steps": max_steps}
        begun |= {"world_size": world_size, "strategy": strategy, "data_files": data_files}
        begun |= {"git": code_that_trains(code), "versions": versions(), "logged": None}
        self.data.update(begun)
        self._note_command(command)
        self._write()
        return self.attempts[-1]["number"]

    def _find_queued_time(self) -> str | None:
        """Return when an attempt that begins now was submitted or requeued, or None."""
        if (job := slurm_job_id()) is None:
            return None
        is_requeued = self.attempt.get("slurm_job_id") == job
        return self.attempt.get("ended") if is_requeued else self.data["queued"]

    def _add_attempt(self, time: float, **values: Any) -> None:
        attempt = {
            **dict.fromkeys(ATTEMPT_KEYS),
            "number": self.next_number,
            "started": iso(time),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "user": this_user(),
            "slurm_job_id": slurm_job_id(),
            **values,
        }
        self.attempts.append(cast(AttemptData, attempt))

    def add_failure(self, outcome: Outcome, *, reason: str, exit_code: int) -> None:
        """Add an attempt that ended before it began; nothing else in the record changes."""
        self._close_killed()
        self._add_closed(outcome, reason, exit_code)
        self.data["state"] = outcome
        self._write()

    def _add_closed(self, outcome: Outcome, reason: str, exit_code: int | None) -> None:
        now, step = self.clock(), self.step
        end: AttemptData = {
            "ended": iso(now),
            "end_step": step,
            "outcome": outcome,
            "reason": reason[:500],
            "exit_code": exit_code,
        }
        self._add_attempt(now, start_step=step, **end)

    def queue(self, command: RecordData | None = None) -> None:
        """Note that the run waits for a scheduler, and the data of the submitting command."""
        self._close_killed()
        self.data.update({"state": "queued", "queued": iso(self.clock())})
        self._note_command(command)
        self._write()

    def note_trial(self, trial: TrialData, command: RecordData) -> None:
        """Note that the run is a trial, and the command of a run that has not begun."""
        name = trial["study"], trial["number"]
        others = [one for one in self.data["trials"] if (one["study"], one["number"]) != name]
        self.data["trials"] = [*others, trial]
        if self.state is None:
            self._note_command(command)
        self._write()

    def revise(
        self,
        outcome: Literal["preempted", "cancelled", "failed"],
        *,
        reason: str,
        exit_code: int | None = None,
        slurm_job_id: str | None = None,
        num_earlier: int | None = None,
    ) -> None:
        """Correct how the newest attempt ended: a signal's cause is known only after its close.

        Not changed are an attempt of another SLURM job than `slurm_job_id`, the job of this
        process, the first `num_earlier` attempts, which are of earlier launches of the job, and a
        completed or cancelled run. With None, a newest attempt with a reason is of an earlier one.
        """
        attempt = self.attempt
        if self.state in ("completed", "cancelled"):
            return
        is_of_job = attempt.get("slurm_job_id") == slurm_job_id
        if num_earlier is None:
            num_earlier = len(self.attempts) if attempt.get("reason") else 0
        if is_of_job:
            self._close_killed()
        if is_of_job and len(self.attempts) > num_earlier:
            attempt["outcome"], attempt["reason"] = outcome, reason[:500]
            if exit_code is not None:
                attempt["exit_code"] = exit_code
        # The run failed before it began an attempt.
        elif outcome == "failed":
            self._add_closed(outcome, reason, exit_code)
        self.data["state"] = outcome
        self._write()

    def note_times(self, seconds: Mapping[str, float]) -> None:
        """Note the durations of the attempt's phases (`AttemptData`) for the next write."""
        if self.attempts:
            self.attempt["seconds"] = {name: round(value, 3) for name, value in seconds.items()}

    def progress(
        self,
        step: int,
        *,
        loss: float | None = None,
        best: BestData | None = None,
        force: bool = False,
    ) -> bool:
        """Note the progress of the run; return True if it was written.

        A write that fails is logged and training continues: the next one may succeed, and no run
        depends on this file.
        """
        self._note(step, loss, best)
        if not (self._is_due() or force):
            return False
        try:
            self._write()
        except OSError as error:
            # A failed write is not repeated at every step.
            self.written_at = self.clock()
            logger.warning("%s could not be written: %s", self.path, error)
            return False
        return True

    def _is_due(self) -> bool:
        """Return whether `progress` writes again, at first after 1, 2, 4 and 8 seconds."""
        if self.written_at is None:
            return True
        age = self.written_at - self._began_at if self._began_at else self.interval
        return abs(self.clock() - self.written_at) >= min(
            self.interval, max(FIRST_WRITE_SECONDS, age)
        )

    def end_attempt(
        self,
        outcome: Outcome,
        *,
        end_step: int,
        signal: str | None = None,
        exit_code: int | None = None,
        reason: str | None = None,
        best: BestData | None = None,
    ) -> None:
        """Close the open attempt. What is logged is read from metrics.jsonl.

        `completed` means: no signal, exit code 0, and the last step reached, or a reason why the
        end came earlier (early stopping).
        """
        attempt, last = self.attempt, self.data["max_steps"]
        if not attempt or attempt.get("outcome") is not None:
            raise ValueError("no attempt is open")
        is_end = reason is not None or (last is not None and end_step >= last)
        if outcome == "completed" and (signal is not None or exit_code or not is_end):
            raise ValueError(
                f"not completed: step {end_step} of {last}, signal {signal}, "
                f"exit code {exit_code}, reason {reason}"
            )
        self._note(end_step, metrics_summary.newest_loss(self.folder.metrics_path), best)
        self.data["logged"] = metrics_summary.summary(self.folder.metrics_path)
        seconds = self._began_at + self.timer() - self._began if self._began_at else self.clock()
        attempt.update(
            {
                "ended": iso(seconds),
                "end_step": end_step,
                "outcome": outcome,
                "signal": signal,
                "exit_code": exit_code,
                "reason": reason,
            }
        )
        self.data["state"] = "failed" if outcome == "killed" else outcome
        # The last write must succeed, as no later one replaces it.
        patiently(self._write)

    def name_by(self, identity: Mapping[str, object], configured_id: str) -> None:
        """Make this the run of another stored identity, whose configuration has this id."""
        self._name(dict(identity), configured_id)
        self._write()

    def reopen(self) -> None:
        """Record that a completed run is to be trained on, before its newest steps are removed.

        A kill in between then leaves a run that resumes.
        """
        if self.state == "completed":
            self.data["state"] = "paused"
            self._write()

    def roll_back(self, step: int, best: BestData | None) -> None:
        """Record that the run is at an earlier step, whose lines and checkpoint are the newest."""
        if self.state == "running":
            self._close_killed()
            self.data["state"] = "failed"
        self._forget_after(step)
        self.data["step"], self.data["logged"] = (
            step,
            metrics_summary.summary(self.folder.metrics_path),
        )
        if best is not None:
            self.data["best"] = {**best, "value": plain_number(best["value"])}
        self._write()

    def _note_command(self, command: RecordData | None) -> None:
        """Note the newest command. The identity stays the first command's, which names the run."""
        if command is None:
            return
        named_by = command if self.data["identity"] is None else self.data
        identity, configured_id = named_by.get("identity"), named_by.get("identity_id")
        self.data.update(command)
        self.data["signature"] = record_signature("run.json", cast(Any, self.data))
        self._name(identity, configured_id)

    def _name(self, identity: dict[str, object] | None, configured_id: str | None) -> None:
        self.data["identity"], self.data["identity_id"] = identity, configured_id
        self.data["identity_version"] = None if identity is None else IDENTITY_VERSION

    def _forget_after(self, step: int) -> None:
        """Forget what was recorded of steps after `step`, which are computed again.

        The process that wrote the record may have been killed before it wrote the newest loss.
        """
        if step == 0:
            self.data["checkpoint"] = None
        if (shared := self.data["shared"]) is not None and step < shared["step"]:
            self.data["shared"] = None
        loss = metrics_summary.newest_loss(self.folder.metrics_path, step)
        self.data["loss"] = None if loss is None else plain_number(loss)
        if (best := self.data["best"]) is not None and best["step"] > step:
            self.data["best"] = None

    def _note(self, step: int, loss: float | None, best: BestData | None) -> None:
        self.data["step"] = step
        if loss is not None:
            self.data["loss"] = plain_number(loss)
        if best is not None:
            self.data["best"] = {**best, "value": plain_number(best["value"])}

    def _close_killed(self) -> None:
        attempt = self.attempt
        if not attempt or attempt.get("outcome") is not None:
            return
        reason = "the process ended without recording why: killed, machine down, or disk full"
        # The record's last write may be older than the newest checkpoint.
        self.data["step"] = max(self.step, self.folder.newest_step())
        attempt.update({"outcome": "killed", "end_step": self.step, "reason": reason})
        # The record's last write is the last known time of the attempt.
        attempt["ended"] = iso(self.path.stat().st_mtime)

    def _write(self) -> None:
        if self.check_lock is not None:
            self.check_lock()
        if self._damage is not None:
            self._set_aside(self._damage)
        # Lost ones are not forgotten.
        self.data["checkpoint"] = self.folder.newest_step() or self.data["checkpoint"]
        self.data["folder"] = str(self.folder.path.absolute())
        replace_file(self.path, json.dumps(self.data, indent=2, allow_nan=False).encode() + b"\n")
        self.written_at = self.clock()

    def _set_aside(self, damage: str) -> None:
        """Keep a damaged file under another name, at a write, since a reader may not write."""
        aside = find_unused_name(self.path)
        os.replace(self.path, aside)
        self._damage = None
        logger.warning(
            "%s is damaged (%s): set aside as %s; the run is at step %d, by its checkpoints.",
            self.path,
            damage,
            aside.name,
            self.step,
        )
