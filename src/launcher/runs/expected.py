"""When a queued run is expected to start, and a running one to end."""

import time
from collections.abc import Mapping
from typing import Any

from launcher.rundir.history import read_rows
from launcher.runs.format import duration
from launcher.runs.stored_run import StoredRun

RECENT_BYTES = 1 << 15
"""End of metrics.jsonl whose lines tell how fast the run is: some hundred lines."""


def expected(run: StoredRun, now: float) -> str:
    """Format `starts in 2h`, `ends in 35m` by the steps that are left, or `limit in 10m`, or ""."""
    if run.job is not None and run.job.is_pending:
        return "" if run.job.start is None else f"starts in {duration(run.job.start - now)}"
    if run.state != "running":
        return ""
    end, limit = expected_end(run, now), None if run.job is None else run.job.end
    if limit is not None and (end is None or limit < end):
        return f"limit in {duration(limit - now)}"
    return "" if end is None else f"ends in {duration(end - now)}"


def described(run: StoredRun, now: float) -> str:
    """Format `expected` with the time of day."""
    text = expected(run, now)
    if text.startswith("starts"):
        at = run.job.start if run.job is not None else None
    elif text.startswith("limit"):
        at = run.job.end if run.job is not None else None
    else:
        at = expected_end(run, now) if text else None
    return "" if at is None else f"{text} ({time.strftime('%Y-%m-%d %H:%M', time.localtime(at))})"


def expected_end(run: StoredRun, now: float) -> float | None:
    """Return the time at which the last step is done, or None if no recent step is known.

    The remaining steps are taken to last as long as the recent ones, with evaluations and saves.
    """
    last_step = run.record.get("max_steps")
    lines = read_rows(run.folder.metrics_path, RECENT_BYTES)
    points = [point for line in lines if (point := _point(line, run)) is not None]
    if not isinstance(last_step, int) or len(points) < 2:
        return None
    (first, began), (step, at) = points[0], points[-1]
    if step <= first:
        return None
    return max(now, at + (last_step - step) * (at - began) / (step - first))


def _point(line: Mapping[str, Any], run: StoredRun) -> tuple[int, float] | None:
    """Step and time of a line of the newest attempt."""
    step, at, attempt = line.get("step"), line.get("time"), line.get("attempt")
    is_own = attempt is None or not run.attempts or attempt == run.attempts[-1].get("number")
    return (step, float(at)) if isinstance(step, int) and is_own and at is not None else None
