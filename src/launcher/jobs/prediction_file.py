"""Files of predictions: JSON lines or Parquet, written in parts that are joined."""

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from launcher.errors import ConfigError
from launcher.rundir.files import replacing

Columns = dict[str, np.ndarray]
"""Rows of a batch by column: arrays whose first axis is the samples."""


class Format(ABC):
    """A format of predictions. A number that is not finite is null in JSON lines."""

    @abstractmethod
    def write(self, path: Path, batches: Sequence[Columns]) -> None:
        """Write a part, in one rename."""

    @abstractmethod
    def join(self, target: Path, parts: Sequence[Path]) -> list[str]:
        """Write the file of all parts in one rename. Returns the names of its columns."""


class JsonLines(Format):
    def write(self, path: Path, batches: Sequence[Columns]) -> None:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            for batch in batches:
                for values in zip(*map(np.ascontiguousarray, batch.values()), strict=True):
                    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
                    row = dict(zip(batch, values, strict=True))
                    file.write(orjson.dumps(row, option=option))

    def join(self, target: Path, parts: Sequence[Path]) -> list[str]:
        with replacing(target) as temporary, open(temporary, "wb") as file:
            for path in parts:
                with open(path, "rb") as part:
                    shutil.copyfileobj(part, file)
        with open(target, "rb") as file:
            return list(json.loads(file.readline()))


class Parquet(Format):
    """Each part is a row group."""

    def write(self, path: Path, batches: Sequence[Columns]) -> None:
        arrow = pyarrow()
        tables = [
            arrow.table({name: nested(arrow, array) for name, array in batch.items()})
            for batch in batches
        ]
        with replacing(path) as temporary:
            arrow.parquet.write_table(arrow.concat_tables(tables), temporary)

    def join(self, target: Path, parts: Sequence[Path]) -> list[str]:
        arrow = pyarrow()
        schema = arrow.parquet.read_schema(parts[0])
        with (
            replacing(target) as temporary,
            arrow.parquet.ParquetWriter(temporary, schema) as writer,
        ):
            for path in parts:
                writer.write_table(arrow.parquet.read_table(path, partitioning=None))
        return list(schema.names)


FORMATS: dict[str, Format] = {".jsonl": JsonLines(), ".parquet": Parquet()}
"""By the ending of the file."""


def pyarrow() -> Any:
    """Import pyarrow.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "job.file: *.parquet needs the package pyarrow; pip install 'torch-launcher[datasets]',"
            " or use *.jsonl."
        ) from error
    return pyarrow


def nested(arrow: Any, array: np.ndarray) -> object:
    """An array of Arrow: a list for each axis but the first."""
    values = arrow.array(array.reshape(-1))
    for axis in range(array.ndim - 1, 0, -1):
        count = int(np.prod(array.shape[:axis]))
        offsets = np.arange(count + 1, dtype=np.int32) * array.shape[axis]
        values = arrow.ListArray.from_arrays(arrow.array(offsets), values)
    return values
