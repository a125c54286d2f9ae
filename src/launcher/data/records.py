"""Read records one at a time: lines of JSON, rows of Parquet or of a `datasets` folder.

`key` is the setting that names the files, for messages.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.config.messages import reason
from launcher.errors import ConfigError
from launcher.rundir.files import parse_json

Record = tuple[dict[str, object], str]
"""Values by field, and their place in the files, for messages."""
ROWS = 1000
FILES = "data.files"


def read_jsonl(path: Path, fields: list[str], key: str = FILES) -> Iterator[Record]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                record = parse_json(line)
            # This includes text that is not UTF-8.
            except ValueError as error:
                raise ConfigError(f"{key}: {where}: is not JSON ({error}).") from error
            if not isinstance(record, dict):
                raise ConfigError(
                    f'{key}: {where}: should be a JSON object; e.g. {{"text": "..."}}.'
                )
            yield record, where


def parquet_columns(path: Path, key: str = FILES) -> list[str]:
    with _parquet(path, key) as file:
        return list(file.schema_arrow.names)


def read_parquet(path: Path, fields: list[str], key: str = FILES) -> Iterator[Record]:
    with _parquet(path, key) as file:
        _check_columns(key, path, fields, file.schema_arrow.names)
        row = 0
        for batch in file.iter_batches(batch_size=ROWS, columns=fields):
            for record in batch.to_pylist():
                row += 1
                yield record, f"{path}, row {row}"


@contextmanager
def _parquet(path: Path, key: str) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise _not_installed("parquet") from error
    try:
        with ParquetFile(path) as file:
            yield file
    except (ArrowException, OSError) as error:
        raise ConfigError(f"{key}: {path}: cannot be read as Parquet ({reason(error)}).") from error


def read_saved(path: Path, fields: list[str], key: str = FILES) -> Iterator[Record]:
    """Read rows of a folder written by `save_to_disk` of the package datasets."""
    try:
        import datasets
    except ImportError as error:
        raise _not_installed("datasets") from error
    try:
        saved = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{key}: {path}: is not a folder of save_to_disk ({reason(error)})."
        ) from error
    if isinstance(saved, datasets.DatasetDict):
        splits = list(saved)
        raise ConfigError(
            f"{key}: {path}: has the splits {', '.join(splits)}; name one: {path / splits[0]}."
        )
    _check_columns(key, path, fields, saved.column_names)
    row = 0
    for batch in saved.select_columns(fields).with_format(None).iter(batch_size=ROWS):
        for values in zip(*(batch[field] for field in fields), strict=True):
            row += 1
            yield dict(zip(fields, values, strict=True)), f"{path}, row {row}"


def _check_columns(key: str, path: Path, fields: list[str], names: list[str]) -> None:
    for field in fields:
        if field not in names:
            raise ConfigError(f"{key}: {path}: has no column {field}; it has {', '.join(names)}.")


def _not_installed(name: str) -> ConfigError:
    return ConfigError(
        f"data={name}: needs the packages datasets and pyarrow; pip install"
        " 'torch-launcher[datasets]'."
    )
