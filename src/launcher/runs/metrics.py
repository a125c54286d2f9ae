"""The newest value of each metric, read from the end of metrics.jsonl."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launcher.run.history import parsed

TAIL_BYTES = 1 << 20


class Value(NamedTuple):
    """A metric's value and the step it was logged at."""

    value: Any
    step: int | None


def newest_metrics(path: Path) -> dict[str, Value]:
    """The newest value of each metric among the last lines of a metrics.jsonl; empty if the file does not exist."""
    return newest_of(last_lines(path))


def newest_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Value]:
    newest: dict[str, Mapping[str, Any]] = {}
    for line in lines:
        newest |= dict.fromkeys(line, line)
    return {key: Value(line[key], line.get("step")) for key, line in newest.items() if "/" in key}


def last_lines(path: Path, max_bytes: int = TAIL_BYTES) -> list[dict[str, Any]]:
    """The JSON lines in the last `max_bytes` of a file. Incomplete and broken lines are skipped."""
    try:
        with open(path, "rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - max_bytes)
            file.seek(start)
            lines = file.read().splitlines()[1 if start else 0 :]
    except FileNotFoundError:
        return []
    return list(parsed(lines))
