"""The time of a run by phase, and its device hours."""

import math
from collections.abc import Sequence

from launcher.rundir.record_format import FIRST_STEP, PYTHON, STARTING, AttemptData
from launcher.runs.format import duration, seconds_of
from launcher.runs.stored_run import StoredRun

PHASES = ("queued", "starting", "computing", "repeating", "evaluating", "saving")
DEVICES = "devices"
Times = dict[str, float]
"""Seconds by phase of all attempts of a run, and seconds of its devices."""


def time_of_run(run: StoredRun, now: float) -> Times:
    """Compute the times of a run so far; an attempt that still runs ends at `now`."""
    times, restart = [], math.inf
    # A later attempt repeats the steps after the step from which it starts.
    for attempt in reversed(run.attempts):
        times.append(time_of_attempt(run, attempt, now, restart))
        restart = min(restart, attempt["start_step"])
    return total_time(times)


def total_time(times: Sequence[Times]) -> Times:
    return {name: sum(each[name] for each in times) for name in (*PHASES, DEVICES)}


def describe_time(times: Times) -> str:
    """Format `2.3 device hours, 91 % effective (queued 3m, starting 20s, computing 2h)`."""
    seconds = {name: times[name] for name in PHASES if times[name] >= 1}
    if not seconds:
        return "0 device hours"
    # Of all time, including the queue.
    share = times["computing"] / sum(times[name] for name in PHASES)
    parts = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items())
    return f"{times[DEVICES] / 3600:,.3g} device hours, {100 * share:.0f} % effective ({parts})"


def describe_starts(attempts: Sequence[AttemptData]) -> str:
    """Format `python 0.1s, imports 3s, build 0.4s, first step 5s`, summed over attempts."""
    names = (PYTHON, *STARTING, FIRST_STEP)
    noted = [attempt.get("seconds") or {} for attempt in attempts]
    sums = {name: sum(each.get(name, 0.0) for each in noted) for name in names}
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.3g}s" for name, value in sums.items() if value
    )


def time_of_attempt(run: StoredRun, attempt: AttemptData, now: float, restart: float) -> Times:
    """Compute the time of one attempt, whose steps after `restart` a later one repeats.

    An attempt without an end lasts until now, or until the last write of a process that is gone.
    """
    begin = seconds_of(attempt.get("launched")) or seconds_of(attempt.get("started")) or now
    end = seconds_of(attempt.get("ended"))
    if end is None:
        end = now if run.state == "running" else run.updated or now
    total = max(0.0, end - begin)
    last = attempt.get("end_step")
    last = run.step if last is None else last
    steps = max(0, last - attempt["start_step"])
    noted = attempt.get("seconds") or {}
    seconds = {name: float(noted.get(name, 0.0)) for name in ("starting", "evaluating", "saving")}
    # An attempt without steps has only started.
    if "starting" not in noted and not steps:
        seconds["starting"] = max(0.0, total - sum(seconds.values()))
    training = max(0.0, total - sum(seconds.values()))
    seconds["repeating"] = training * max(0, min(steps, last - restart)) / steps if steps else 0.0
    seconds["computing"] = training - seconds["repeating"]
    queued = seconds_of(attempt.get("queued"))
    seconds["queued"] = 0.0 if queued is None else max(0.0, begin - queued)
    return seconds | {DEVICES: total * (attempt.get("world_size") or 1)}
