"""The course of a run, read from its metrics.jsonl, and sparklines."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from launcher.process.files import is_absent, open_file
from launcher.rundir.folder import RunFolder

Row = dict[str, Any]
"""A line of metrics.jsonl, or of another log of the run."""
TIMES = ("time", "times")
MEASURED = ("throughput", "memory", "max_memory")
MAX_FULL_READ = 1 << 16
"""Size in bytes up to which a file is read in full. Of a larger file, only a few places are read
where a few values are enough."""
SAMPLE_BYTES = 1 << 12
"""Bytes read at each of these places."""
BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 16
LOG_SCALE_RATIO = 1000.0
"""Ratio of the largest to the smallest value from which a curve is drawn on a logarithmic scale."""


@dataclass
class Curve:
    """A metric over the course of a run; `x` is its horizontal axis."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)

    def points(self) -> Iterable[tuple[float, float]]:
        return zip(self.x, self.y, strict=True)

    def by_step(self) -> dict[int, float]:
        return {int(x): y for x, y in self.points()}

    def smooth(self, weight: float, log: bool) -> "Curve":
        """Compute an exponential moving average of finite values, corrected for its start.

        Args:
            weight: weight of the average so far, from 0 (no change) to below 1.
            log: average the logarithms, for a logarithmic scale; leaves out values up to 0.
        """
        mean = 0.0
        total = 0.0
        result = Curve()
        for x, y in self.points():
            if math.isfinite(y) and (y > 0 or not log):
                mean = weight * mean + (1 - weight) * (math.log(y) if log else y)
                total = weight * total + (1 - weight)
                result.x.append(x)
                result.y.append(math.exp(mean / total) if log else mean / total)
        return result

    def thin(self, limit: int) -> "Curve":
        """Keep at most `limit` points, evenly spaced, with the first and the last."""
        indices = evenly(len(self.x), limit)
        return Curve([self.x[index] for index in indices], [self.y[index] for index in indices])


def evenly(count: int, limit: int) -> list[int]:
    """Return at most `limit` (2 or more) positions, evenly spaced, with the first and the last."""
    if count <= limit:
        return list(range(count))
    return [round(index * (count - 1) / (limit - 1)) for index in range(limit)]


class History:
    """The lines of a metrics.jsonl (`read_rows`), each with its time since the first start.

    `starts` has the start of each attempt in seconds since the epoch; time between attempts does
    not count.
    """

    def __init__(self, rows: Sequence[Row], starts: Mapping[int, float] | None = None):
        self.rows = rows
        self._elapsed = list(_elapse(rows, starts or {}))

    @classmethod
    def of(cls, folder: RunFolder, starts: Mapping[int, float] | None = None) -> "History":
        return cls(list(read_rows(folder.metrics_path)), starts)

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(key for row in self.rows for key in row if "/" in key))

    @property
    def seconds(self) -> float:
        return self._elapsed[-1] if self._elapsed else 0.0

    def values(self, metric: str) -> list[tuple[int, float]]:
        """Return the values of a metric, each with the index of its line."""
        numbers = ((index, as_number(row.get(metric))) for index, row in enumerate(self.rows))
        return [(index, number) for index, number in numbers if number is not None]

    def x(self, index: int, against: str = "step") -> float | None:
        """Return a line's position on the axis: `step`, `time` (of training) or `samples`."""
        if against == "time":
            return self._elapsed[index]
        return as_number(self.rows[index].get(against))

    def curve(self, metric: str, against: str = "step") -> Curve:
        points = [(self.x(index, against), y) for index, y in self.values(metric)]
        pairs = [(x, y) for x, y in points if x is not None]
        return Curve([x for x, _ in pairs], [y for _, y in pairs])

    def restarts(self, against: str = "step") -> list[float]:
        """Return the positions on the axis at which the run was resumed."""
        attempts = [row.get("attempt") for row in self.rows]
        ends = (index for index, (one, next) in enumerate(pairwise(attempts)) if one != next)
        return [x for x in (self.x(index, against) for index in ends) if x is not None]


def _elapse(rows: Sequence[Row], starts: Mapping[int, float]) -> Iterator[float]:
    total = 0.0
    last = None
    attempt = None
    for row in rows:
        now = as_number(row.get("time"))
        number = row.get("attempt")
        if now is not None:
            if number != attempt:
                last = starts.get(number or 0, now)
                attempt = number
            total += max(0.0, now - (now if last is None else last))
            last = now
        yield total


def read_rows(path: Path, tail: int | None = None) -> Iterator[Row]:
    """Yield the complete, valid lines of a file of JSON lines; none if it does not exist.

    Args:
        path: the file. A write may be in progress, or may have been cut short.
        tail: read this many bytes at its end only. Then none if it cannot be read.
    """
    try:
        with open_file(path) as file:
            if tail is not None and (start := file.seek(0, os.SEEK_END) - tail) > 0:
                file.seek(start)
                file.readline()
            else:
                file.seek(0)
            yield from parse_lines(file)
    except OSError as error:
        if tail is None and not is_absent(error):
            raise


def parse_lines(lines: Iterable[bytes]) -> Iterator[Row]:
    for line in lines:
        try:
            row = _loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def _loads(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except ValueError:
        # Orjson rejects NaN and numbers larger than any float.
        return json.loads(line)


def values_of(rows: Iterable[Row], metric: str) -> list[float]:
    return [value for row in rows if (value := as_number(row.get(metric))) is not None]


def sample_values(path: Path, metric: str, count: int) -> list[float]:
    """Read about `count` values of a metric; only a few places of a large file are read."""
    try:
        size = path.stat().st_size
        if size <= MAX_FULL_READ:
            return values_of(read_rows(path), metric)
        with open_file(path) as file:
            return list(_spread_values(file, size, metric, count))
    except OSError:
        return []


def _spread_values(file: Any, size: int, metric: str, count: int) -> Iterator[float]:
    for index in range(count):
        start = index * max(0, size - SAMPLE_BYTES) // (count - 1)
        file.seek(start)
        lines = file.read(SAMPLE_BYTES).split(b"\n")[1 if start else 0 :]
        numbers = values_of(parse_lines(lines), metric)
        if numbers:
            yield numbers[-1] if index == count - 1 else numbers[0]


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Draw values as a row of at most `width` bars, with a cross for a value that is not finite."""
    ends = [index * len(values) // width for index in range(width + 1)]
    means = list(values)
    if len(values) > width:
        groups = [values[start:end] for start, end in pairwise(ends)]
        means = [sum(group) / len(group) for group in groups]
    finite = [mean for mean in means if math.isfinite(mean)]
    if finite and is_wide(finite):
        means = [math.log(mean) if math.isfinite(mean) else mean for mean in means]
        finite = [math.log(mean) for mean in finite]
    low = min(finite, default=0.0)
    high = max(finite, default=0.0)
    return "".join(_bar(mean, low, high) for mean in means)


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "×"
    # Halves, since a difference of the largest floats is infinite.
    span = high / 2 - low / 2
    if span > 0:
        return BARS[round((value / 2 - low / 2) / span * (len(BARS) - 1))]
    return BARS[0]


def is_wide(values: Iterable[float]) -> bool:
    """Return whether finite values span orders of magnitude."""
    numbers = list(values)
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_SCALE_RATIO


def is_measured(name: str) -> bool:
    """Return whether a value depends on time and machine: duration, throughput, memory."""
    return any(part.endswith(TIMES) or part in MEASURED for part in name.split("/"))


def as_number(value: object) -> float | None:
    """Return a number of metrics.jsonl, where "nan" and "inf" are strings, or None."""
    if type(value) is float:
        return value
    if not isinstance(value, int | str) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
