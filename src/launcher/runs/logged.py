"""What a listing shows of a run's metrics.jsonl: the loss curve and the newest metrics."""

from typing import Any

from launcher.run.history import SMALL
from launcher.run.metrics import curve_and_newest
from launcher.runs.run_files import RunFiles

METRICS = "metrics.jsonl"


def curve_and_lines(files: RunFiles, summary: dict[str, Any] | None) -> tuple[str, str] | None:
    """The curve, and the lines with the newest metrics. None: no file, one that cannot be read, or a long one.

    Args:
        summary: what run.json has of it; it is used if the file is as it was when the run ended.
    """
    status = files.look(METRICS)
    if status is None:
        return None
    if summary is not None and (summary["size"], summary["mtime_ns"]) == (status.st_size, status.st_mtime_ns):
        return summary["curve"], summary["newest"]
    try:
        return curve_and_newest(files.read(METRICS)) if status.st_size <= SMALL else None
    except OSError:
        return None
