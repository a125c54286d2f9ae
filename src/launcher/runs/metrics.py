"""What metrics.jsonl says of a run as a whole: the newest value of each metric, all values of one. Most lines differ in
their numbers alone, so few of them are parsed."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from launcher.run.history import parsed, values_of

TAIL_BYTES = 1 << 20
NUMERIC = b"0123456789.+-"
MOST_KINDS = 50
"""With more kinds of lines, all are parsed."""


class Value(NamedTuple):
    """A metric's value and the step it was logged at."""

    value: Any
    step: int | None


class Kind(NamedTuple):
    """Lines that differ in their numbers alone: the last one, and how many there are."""

    last: dict[str, Any]
    lines: int


def newest_metrics(path: Path) -> dict[str, Value]:
    """The newest value of each metric among the last lines of a metrics.jsonl; empty if the file cannot be read."""
    data = last_bytes(path)
    kinds = kinds_of(data)
    return newest_of(parsed(data.splitlines()) if kinds is None else [kind.last for kind in kinds])


def values_and_newest(data: bytes, metric: str) -> tuple[list[float], dict[str, Value]]:
    """All values of a metric in a whole metrics.jsonl, and the newest value of each metric."""
    kinds = kinds_of(data)
    values = None if kinds is None else _values(data, metric, kinds)
    if kinds is None or values is None:
        rows = list(parsed(data.splitlines()))
        return values_of(rows, metric), newest_of(rows)
    return values, newest_of(kind.last for kind in kinds)


def newest_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Value]:
    newest: dict[str, Mapping[str, Any]] = {}
    for line in lines:
        newest |= dict.fromkeys(line, line)
    return {key: Value(line[key], line.get("step")) for key, line in newest.items() if "/" in key}


def kinds_of(data: bytes) -> list[Kind] | None:
    """The kinds of lines, in the order of their last ones; None: they cannot be told apart by their text, or a line is
    broken."""
    if not data.endswith(b"\n") or b"\\" in data:
        return None
    shapes = data.translate(None, NUMERIC).split(b"\n")[-2::-1]  # the last line first
    distinct = set(shapes)
    if len(distinct) > MOST_KINDS:
        return None
    places = {shapes.index(shape): shape for shape in distinct}
    texts = data.rsplit(b"\n", max(places) + 2)[-2::-1]
    kinds = []
    for place, shape in sorted(places.items(), reverse=True):
        try:
            row = json.loads(texts[place])
        except ValueError:
            return None
        if not isinstance(row, dict) or any(isinstance(value, (dict, list)) for value in row.values()):
            return None
        kinds.append(Kind(row, shapes.count(shape)))
    keys = {key for kind in kinds for key in kind.last}
    numbered = [key for key in keys if key.encode().translate(None, NUMERIC) != key.encode()]  # train/lr/0, train/lr/1
    return kinds if all(data.count(_written(key)) == _count(key, kinds) for key in numbered) else None


def _values(data: bytes, metric: str, kinds: Iterable[Kind]) -> list[float] | None:
    """None: one of them is no number, such as "nan"."""
    words = _pattern(metric).findall(data)
    try:
        return list(map(float, words)) if len(words) == _count(metric, kinds) else None
    except ValueError:
        return None


@lru_cache
def _pattern(metric: str) -> re.Pattern[bytes]:
    return re.compile(re.escape(_written(metric)) + rb"([^,}]*)")


def _written(key: str) -> bytes:
    return f'"{key}": '.encode()


def _count(key: str, kinds: Iterable[Kind]) -> int:
    """The number of lines that have a key."""
    return sum(kind.lines for kind in kinds if key in kind.last)


def last_bytes(path: Path, most: int = TAIL_BYTES) -> bytes:
    """The complete lines in the last bytes of a file; nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - most)
            file.seek(start)
            return file.read() if not start else file.read().partition(b"\n")[2]
    except OSError:
        return b""
