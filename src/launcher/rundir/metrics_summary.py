"""Summaries of metrics.jsonl: the loss curve and the newest value of each metric."""

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from launcher.rundir.history import (
    MAX_FULL_READ,
    Row,
    as_number,
    read_rows,
    sample_values,
    sparkline,
    values_of,
)
from launcher.rundir.record_format import LoggedData, json_value

LOSS = "train/loss"
CURVE_WIDTH = 10
TAIL_BYTES = 1 << 20
MAX_TEXT = 1 << 14
"""Maximum length of a summary, which is a part of run.json."""


class LoggedValue(NamedTuple):
    """A metric's value and the step it was logged at."""

    value: Any
    step: int | None


def summary(path: Path) -> LoggedData | None:
    """Return `curve_and_newest` for run.json, or None if it is empty or too long."""
    curve, newest = curve_and_newest(path)
    plain = {name: [json_value(value), json_value(step)] for name, (value, step) in newest.items()}
    if plain and len(json.dumps(plain)) <= MAX_TEXT:
        return {"curve": curve, "newest": plain}
    return None


def curve_and_newest(path: Path) -> tuple[str, dict[str, LoggedValue]]:
    """Return the training loss in a metrics.jsonl as a row of bars, and its `newest_metrics`."""
    with suppress(OSError):
        if path.stat().st_size <= MAX_FULL_READ:
            rows = list(read_rows(path))
            return sparkline(values_of(rows, LOSS), CURVE_WIDTH), newest_of(rows)
    return sparkline(sample_values(path, LOSS, CURVE_WIDTH), CURVE_WIDTH), newest_metrics(path)


def newest_metrics(path: Path) -> dict[str, LoggedValue]:
    """Return the newest value of each metric among the last lines of a metrics.jsonl."""
    return newest_of(read_rows(path, TAIL_BYTES))


def newest_loss(path: Path, last_step: float = math.inf) -> float | None:
    """Return the training loss that was logged last, up to a step, or None if there is none."""
    loss = None
    for line in read_rows(path, TAIL_BYTES):
        if LOSS in line and (as_number(line.get("step")) or 0) <= last_step:
            loss = as_number(line[LOSS])
    return loss


def newest_of(lines: Iterable[Row]) -> dict[str, LoggedValue]:
    newest: dict[str, Row] = {}
    for line in lines:
        newest |= dict.fromkeys(line, line)
    return {
        key: LoggedValue(line[key], line.get("step")) for key, line in newest.items() if "/" in key
    }
