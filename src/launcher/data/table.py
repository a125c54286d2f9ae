"""data=table: numbers in CSV, Parquet or JSON lines files."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from launcher.data.base import DataSource
from launcher.data.digits import Labelled
from launcher.data.encoding import IGNORED
from launcher.data.file_patterns import check_files, find_files
from launcher.data.record_readers import (
    Record,
    check_columns,
    parquet_columns,
    read_jsonl,
    read_parquet,
)
from launcher.errors import ConfigError
from launcher.types import PositiveInt, UnitInterval


@dataclass(kw_only=True, eq=False)
class TableData(DataSource):
    """Rows of numbers, which are all kept in memory.

    Samples have input [B, num_features] float32, and target [B] int64 with `num_classes`, else [B,
    1] float32.

    Args:
        files: a path or glob, or a list of them, with the suffix .csv (with a heading), .parquet or
            .jsonl.
        val_fraction: the share of the rows that is held out if val_files is null, evenly spread.
        predict: the same as files, for job=predict; the target may be missing.
    """

    files: str | list[str]
    target: str
    features: list[str]
    num_features: PositiveInt | None = None
    num_classes: PositiveInt | None = None
    val_files: str | list[str] | None = None
    val_fraction: UnitInterval = 0.1
    predict: str | list[str] | None = None

    def check(self) -> None:
        if not self.features or self.target in self.features:
            raise ConfigError(
                f"data.features={self.features}: should name columns other than {self.target}."
            )
        if self.num_features not in (None, len(self.features)):
            raise ConfigError(
                f"data.num_features={self.num_features}: is the number of data.features,"
                f" {len(self.features)}; leave it out."
            )
        check_files(self, self._find)

    def train_dataset(self) -> TableDataset:
        return self._part(held_out=False)

    def val_dataset(self) -> TableDataset | None:
        if self.val_files is not None:
            return self._read("data.val_files", self.val_files)
        held_out = self._part(held_out=True)
        return held_out if len(held_out) else None

    def predict_dataset(self) -> TableDataset | None:
        if self.predict is None:
            return None
        return self._read("data.predict", self.predict, needs_target=False)

    def _part(self, held_out: bool) -> TableDataset:
        whole = self._read("data.files", self.files)
        share = 0.0 if self.val_files is not None else self.val_fraction
        chosen = (np.diff(np.floor(np.arange(len(whole) + 1) * share)) > 0) == held_out
        return TableDataset(whole.inputs[chosen], whole.targets[chosen])

    @staticmethod
    def _find(key: str, patterns: str | list[str]) -> list[Path]:
        files = find_files(key, patterns)
        for path in files:
            if path.suffix not in READERS:
                raise ConfigError(f"{key}={path}: should end in {', '.join(READERS)}.")
        return files

    def _read(self, key: str, patterns: str | list[str], needs_target: bool = True) -> TableDataset:
        files = self._find(key, patterns)
        has_target = needs_target or all(self.target in columns_of(key, path) for path in files)
        columns = [*self.features, *([self.target] if has_target else [])]
        rows = [
            [_number(key, record, column, where) for column in columns]
            for path in files
            for record, where in READERS[path.suffix](path, columns, key)
        ]
        if not rows:
            raise ConfigError(f"{key}: the files have no rows.")
        table = np.array(rows, dtype=np.float64)
        inputs = table[:, : len(self.features)].astype(np.float32)
        if has_target:
            return TableDataset(inputs, self._targets(table[:, -1]))
        if self.num_classes is None:
            return TableDataset(inputs, np.full((len(rows), 1), math.nan, np.float32), False)
        return TableDataset(inputs, np.full(len(rows), IGNORED, np.int64), False)

    def _targets(self, targets: np.ndarray) -> np.ndarray:
        if self.num_classes is None:
            return targets[:, None].astype(np.float32)
        wrong = (targets != np.floor(targets)) | (targets < 0) | (targets >= self.num_classes)
        if wrong.any():
            raise ConfigError(
                f"data.target={self.target}: has the value {targets[wrong][0]:g}, not one of"
                f" data.num_classes={self.num_classes} classes from 0 on."
            )
        return targets.astype(np.int64)


class TableDataset(Labelled):
    """Rows in memory. Without targets, their place is taken by a value that does not count."""

    def __init__(self, inputs: np.ndarray, targets: np.ndarray, has_targets: bool = True):
        super().__init__(inputs, targets)
        self.has_targets = has_targets
        self.fingerprint = hashlib.sha256(inputs.tobytes() + targets.tobytes()).hexdigest()[:16]


def columns_of(key: str, path: Path) -> list[str]:
    """Return a file's columns; of JSON lines the fields of the first one."""
    if path.suffix == ".parquet":
        return parquet_columns(path, key)
    record, _ = next(READERS[path.suffix](path, [], key), ({}, ""))
    return list(record)


def read_csv(path: Path, fields: list[str], key: str) -> Iterator[Record]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            check_columns(f"{key}: {path}", fields, reader.fieldnames or ())
            for record in reader:
                yield record, f"{path}, line {reader.line_num}"
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: {path}: cannot be read as CSV ({error}).") from error


READERS: dict[str, Callable[[Path, list[str], str], Iterator[Record]]] = {
    ".csv": read_csv,
    ".parquet": read_parquet,
    ".jsonl": read_jsonl,
}


def _number(key: str, record: dict[str, Any], column: str, where: str) -> float:
    value = record.get(column)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{key}: {where}: {column} is {value!r}, not a finite number.")
    return number
