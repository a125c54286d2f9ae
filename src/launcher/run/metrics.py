"""What metrics.jsonl says of a run as a whole: the newest value of each metric, all values of one. Most lines differ in
their numbers alone, so few of them are parsed."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from launcher.run.history import SMALL, parsed, sampled, sparkline, values_of

LOSS, CURVE_WIDTH = "train/loss", 10
TAIL_BYTES = 1 << 20
NUMERIC = b"0123456789.+-"
MOST_KINDS = 50
"""With more kinds of lines, all are parsed."""
MOST_TEXT = 1 << 14
"""Characters of a summary, which is a part of run.json."""


class Value(NamedTuple):
    """A metric's value and the step it was logged at."""

    value: Any
    step: int | None


class Kind(NamedTuple):
    """Lines that differ in their numbers alone: the last one, its text, and how many there are."""

    last: dict[str, Any]
    text: bytes
    lines: int


def summary(path: Path) -> dict[str, Any] | None:
    """What a listing shows of a metrics.jsonl, with the file's size and time: it is out of date if these have changed.
    None if the file cannot be read, or if the summary is too long for run.json.
    """
    try:
        status = os.stat(path)
        if status.st_size <= SMALL:
            curve, newest = curve_and_newest(path.read_bytes())
        else:
            curve, newest = curve_in(path), newest_lines(last_bytes(path))
    except OSError:
        return None
    if len(newest) > MOST_TEXT:
        return None
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "curve": curve, "newest": newest}


def curve_in(path: Path) -> str:
    """The training loss in a metrics.jsonl of any length as a row of bars."""
    return sparkline(sampled(path, LOSS, CURVE_WIDTH), CURVE_WIDTH)


def curve_and_newest(data: bytes) -> tuple[str, str]:
    """The training loss in a whole metrics.jsonl as a row of bars, and its `newest_lines`."""
    losses, newest = values_and_newest(data, LOSS)
    return sparkline(losses, CURVE_WIDTH), newest


def newest_metrics(path: Path) -> dict[str, Value]:
    """The newest value of each metric among the last lines of a metrics.jsonl; empty if the file cannot be read."""
    data = last_bytes(path)
    kinds = kinds_of(data)
    return newest_of(parsed(data.splitlines()) if kinds is None else [kind.last for kind in kinds])


def newest_lines(data: bytes) -> str:
    """Lines with the newest value of each metric, for `newest_in`."""
    kinds = kinds_of(data)
    return _lines_of(newest_of(parsed(data.splitlines()))) if kinds is None else _last_lines(kinds)


def newest_in(lines: str) -> dict[str, Value]:
    return newest_of(parsed(line.encode() for line in lines.split("\n")))


def values_and_newest(data: bytes, metric: str) -> tuple[list[float], str]:
    """All values of a metric in a whole metrics.jsonl, and its `newest_lines`."""
    kinds = kinds_of(data)
    values = None if kinds is None else _values(data, metric, kinds)
    if kinds is None or values is None:
        rows = list(parsed(data.splitlines()))
        return values_of(rows, metric), _lines_of(newest_of(rows))
    return values, _last_lines(kinds)


def _last_lines(kinds: Sequence[Kind]) -> str:
    """The last line of each kind; one whose keys begin the next line is left out, since the next has newer values."""
    lines = [
        kind.text
        for kind, later in zip_longest(kinds, kinds[1:])
        if later is None or list(kind.last) != list(later.last)[: len(kind.last)]
    ]
    return b"\n".join(lines).decode()


def _lines_of(newest: Mapping[str, Value]) -> str:
    rows = ({key: value} if step is None else {"step": step, key: value} for key, (value, step) in newest.items())
    return "\n".join(map(json.dumps, rows))


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
        row = next(parsed([texts[place]]), None)
        has_nested = b"[" in shape or shape.count(b"{") > 1
        if row is None or (has_nested and any(isinstance(value, (dict, list)) for value in row.values())):
            return None
        kinds.append(Kind(row, texts[place], shapes.count(shape)))
    numbered = {key for kind in kinds for key in _numbered(tuple(kind.last))}
    return kinds if all(data.count(_written(key)) == _count(key, kinds) for key in numbered) else None


@lru_cache
def _numbered(keys: Sequence[str]) -> list[str]:
    """The keys that contain a number: another key may differ in that number alone (train/lr/0, train/lr/1)."""
    return [key for key in keys if key.encode().translate(None, NUMERIC) != key.encode()]


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
    return f'"{key}":'.encode()


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
