"""data=table: numbers in CSV files."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from launcher.data.base import DataSource
from launcher.data.digits import Labelled
from launcher.data.encoding import IGNORED
from launcher.data.file_patterns import check_files, find_files
from launcher.data.record_readers import Values, check_columns
from launcher.errors import ConfigError
from launcher.types import Patterns, PositiveInt, UnitInterval


@dataclass(kw_only=True, eq=False)
class TableData(DataSource):
    """Rows of numbers, which are all kept in memory.

    Samples have input [B, num_features] float32, and target [B] int64 with `num_classes`, else [B,
    1] float32.

    Args:
        files: a path or glob of CSV files with a heading, or a list of them.
        val_fraction: the share of the rows that is held out if val_files is null, evenly spread.
        predict: the same as files, for job=predict; the target may be missing.
    """

    files: Patterns
    target: str
    features: list[str]
    num_features: PositiveInt | None = None
    num_classes: PositiveInt | None = None
    val_files: Patterns | None = None
    val_fraction: UnitInterval = 0.1
    predict: Patterns | None = None

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
        check_files(self)

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

    def _read(self, key: str, patterns: Patterns, needs_target: bool = True) -> TableDataset:
        files = find_files(key, patterns)
        rows = [row for path in files for row in self._rows(key, path, needs_target)]
        if not rows:
            raise ConfigError(f"{key}: the files have no rows.")
        table = np.array(rows, dtype=np.float64)
        inputs = table[:, :-1].astype(np.float32)
        targets = table[:, -1]
        has_targets = not np.isnan(targets).any()
        if self.num_classes is None:
            return TableDataset(inputs, targets[:, None].astype(np.float32), has_targets)
        if not has_targets:
            return TableDataset(inputs, np.full(len(rows), IGNORED, np.int64), False)
        wrong = (targets != np.floor(targets)) | (targets < 0) | (targets >= self.num_classes)
        if wrong.any():
            raise ConfigError(
                f"data.target={self.target}: has the value {targets[wrong][0]:g}, not one of"
                f" data.num_classes={self.num_classes} classes from 0 on."
            )
        return TableDataset(inputs, targets.astype(np.int64))

    def _rows(self, key: str, path: Path, needs_target: bool) -> Iterator[list[float]]:
        """Yield the features and the target of each row, NaN if the file has no such column."""
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                heading = reader.fieldnames or ()
                columns = [*self.features, self.target]
                if not needs_target and self.target not in heading:
                    columns.pop()
                check_columns(f"{key}: {path}", columns, heading)
                for record in reader:
                    where = f"{key}: {path}, line {reader.line_num}"
                    row = [_number(record, column, where) for column in columns]
                    yield row if self.target in columns else [*row, math.nan]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"{key}: {path}: cannot be read as CSV ({error}).") from error


class TableDataset(Labelled):
    """Rows in memory. Without targets, their place is taken by a value that does not count."""

    def __init__(self, inputs: np.ndarray, targets: np.ndarray, has_targets: bool = True):
        super().__init__(inputs, targets)
        self.has_targets = has_targets
        self.fingerprint = hashlib.sha256(inputs.tobytes() + targets.tobytes()).hexdigest()[:16]


def _number(record: Values, column: str, where: str) -> float:
    value = record.get(column)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{where}: {column} is {value!r}, not a finite number.")
    return number
