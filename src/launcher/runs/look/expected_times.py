"""When a queued run is expected to start, and a running one to end."""

import time

from launcher.rundir.history import read_rows
from launcher.runs.format import duration
from launcher.runs.stored_run import StoredRun

RECENT_BYTES = 1 << 15
"""End of metrics.jsonl whose lines tell how fast the run is: some hundred lines."""


def format_expected(run: StoredRun, now: float) -> str:
    """Format `starts in 2h`, `ends in 35m` by the steps that are left, or `limit in 10m`, or ""."""
    event, at = next_event(run, now)
    return "" if at is None else f"{event} in {duration(at - now)}"


def format_with_time(run: StoredRun, now: float) -> str:
    """Format the expected end or start with the time of day."""
    event, at = next_event(run, now)
    if at is None:
        return ""
    clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    return f"{event} in {duration(at - now)} ({clock})"


def next_event(run: StoredRun, now: float) -> tuple[str, float | None]:
    """Return `starts`, `ends` or `limit`, and its time, or None if that is not known."""
    if run.job is not None and run.job.is_pending:
        return "starts", run.job.start
    if run.state != "running":
        return "ends", None
    end, limit = estimate_end(run, now), None if run.job is None else run.job.end
    is_limited = limit is not None and (end is None or limit < end)
    return ("limit", limit) if is_limited else ("ends", end)


def estimate_end(run: StoredRun, now: float) -> float | None:
    """Return the time at which the last step is done, or None if no recent step is known.

    The remaining steps are taken to last as long as the recent ones, with evaluations and saves.
    """
    newest = run.attempts[-1].get("number") if run.attempts else None
    points: list[tuple[int, float]] = [
        (line["step"], float(line["time"]))
        for line in read_rows(run.folder.metrics_path, RECENT_BYTES)
        if isinstance(line.get("step"), int)
        and line.get("time") is not None
        and line.get("attempt", newest) == newest
    ]
    last_step = run.record.get("max_steps")
    if not isinstance(last_step, int) or len(points) < 2:
        return None
    (first, began), (step, at) = points[0], points[-1]
    if step <= first:
        return None
    return max(now, at + (last_step - step) * (at - began) / (step - first))
