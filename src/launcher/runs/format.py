"""Numbers and times as people read them."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from launcher.process.plural import shorten
from launcher.rundir.record_format import RecordData


def duration(seconds: float) -> str:
    """Format a duration in one unit: 12s, 5m, 3h, 2d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size or (seconds >= size and unit == "m"):
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def seconds_of(time: str | None) -> float | None:
    """Convert an ISO 8601 time to seconds since the epoch, and None to None."""
    try:
        return datetime.fromisoformat(time).timestamp() if time else None
    except ValueError:
        return None


def local_time(time: str | None) -> str:
    """Format an ISO 8601 time in this machine's time zone, to the second."""
    seconds = seconds_of(time)
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def number(value: Any) -> str:
    """Format a number, or "nan" and "inf" of run.json, with four digits, and None as `-`."""
    if value is None:
        return "-"
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError, OverflowError):
        return str(value)


def best(record: RecordData) -> str:
    """Format the best value and its step: `1.234 (val/loss, step 400)`."""
    value = record.get("best")
    if value is None:
        return "-"
    return f"{number(value.get('value'))} ({value.get('metric')}, step {value.get('step')})"


def join_names(names: Collection[str]) -> str:
    """Join names with commas, of many the first four."""
    return shorten(names, 4) or "none"
