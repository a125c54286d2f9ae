"""Read records one at a time: lines of JSON, rows of Parquet.

`key` is the setting that names the files, for messages.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.config.messages import reason
from launcher.errors import ConfigError, needing
from launcher.process.files import parse_json

Values = dict[str, Any]
Record = tuple[Values, str]
"""Values by field, and their place in the files, for messages."""
ROWS = 1000


def read_jsonl(path: Path, fields: list[str], key: str) -> Iterator[Record]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                record = parse_json(line)
            # Text that is not UTF-8 is a ValueError too.
            except ValueError as error:
                raise ConfigError(f"{key}: {where}: is not JSON ({error}).") from error
            if not isinstance(record, dict):
                raise ConfigError(
                    f'{key}: {where}: should be a JSON object; e.g. {{"text": "..."}}.'
                )
            yield record, where


def read_parquet(path: Path, fields: list[str], key: str) -> Iterator[Record]:
    with _parquet(path, key) as file:
        check_columns(f"{key}: {path}", fields, file.schema_arrow.names)
        row = 0
        for batch in file.iter_batches(batch_size=ROWS, columns=fields):
            for record in batch.to_pylist():
                row += 1
                yield record, f"{path}, row {row}"


@contextmanager
def _parquet(path: Path, key: str) -> Iterator[Any]:
    with needing(
        f"{key}: {path}: needs the package pyarrow; pip install 'torch-launcher[documents]'."
    ):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        with ParquetFile(path) as file:
            yield file
    except (ArrowException, OSError) as error:
        raise ConfigError(f"{key}: {path}: cannot be read as Parquet ({reason(error)}).") from error


def check_columns(where: str, fields: list[str], names: Sequence[str]) -> None:
    for field in fields:
        if field not in names:
            raise ConfigError(
                f"{where}: has no column {field}; it has {', '.join(names) or 'none'}."
            )
