"""The time of a run by phase, and its device hours."""

import math
from dataclasses import dataclass, field

from launcher.rundir.record_format import AttemptData
from launcher.runs.format import duration, seconds_of
from launcher.runs.stored_run import StoredRun

PHASES = ("queued", "starting", "computing", "repeating", "evaluating", "saving")


@dataclass
class TimeSpent:
    """Seconds by phase of all attempts of a run (`PHASES`), and seconds of its devices."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    device_seconds: float = 0.0

    def __add__(self, more: "TimeSpent") -> "TimeSpent":
        seconds = {name: self.seconds[name] + more.seconds[name] for name in PHASES}
        return TimeSpent(seconds, self.device_seconds + more.device_seconds)

    @property
    def device_hours(self) -> float:
        return self.device_seconds / 3600

    def line(self) -> str:
        """Format `2.3 device hours, 91 % effective (queued 3m, starting 20s, computing 2h)`."""
        seconds = {name: self.seconds[name] for name in PHASES if self.seconds[name] >= 1}
        if not seconds:
            return "0 device hours"
        # Of all time, including the queue.
        share = self.seconds["computing"] / sum(self.seconds.values())
        parts = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items())
        return f"{self.device_hours:,.3g} device hours, {100 * share:.0f} % effective ({parts})"


def time_of_run(run: StoredRun, now: float) -> TimeSpent:
    """Compute the time of a run so far; an attempt that still runs ends at `now`."""
    result, restart = TimeSpent(), math.inf
    # A later attempt repeats the steps after the step from which it starts.
    for attempt in reversed(run.attempts):
        result += time_of_attempt(run, attempt, now, restart)
        restart = min(restart, attempt["start_step"])
    return result


def time_of_attempt(run: StoredRun, attempt: AttemptData, now: float, restart: float) -> TimeSpent:
    """Compute the time of one attempt, whose steps after `restart` a later one repeats.

    An attempt without an end lasts until now, or until the last write of a process that is gone.
    """
    begin = seconds_of(attempt.get("launched")) or seconds_of(attempt.get("started")) or now
    end = seconds_of(attempt.get("ended"))
    if end is None:
        end = now if run.state == "running" else run.updated or now
    total = max(0.0, end - begin)
    last = attempt.get("end_step")
    last = (run.record.get("step") or 0) if last is None else last
    steps = max(0, last - attempt["start_step"])
    noted = attempt.get("seconds") or {}
    seconds = {name: float(noted.get(name, 0.0)) for name in ("starting", "evaluating", "saving")}
    # It has not reached its first step.
    if "starting" not in noted and not steps:
        seconds["starting"] = max(0.0, total - sum(seconds.values()))
    training = max(0.0, total - sum(seconds.values()))
    seconds["repeating"] = training * max(0, min(steps, last - restart)) / steps if steps else 0.0
    seconds["computing"] = training - seconds["repeating"]
    queued = seconds_of(attempt.get("queued"))
    seconds["queued"] = 0.0 if queued is None else max(0.0, begin - queued)
    return TimeSpent(seconds, total * (attempt.get("world_size") or 1))
