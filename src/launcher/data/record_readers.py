"""Read records one at a time: lines of JSON, rows of Parquet or of a `datasets` folder.

`key` is the setting that names the files, for messages.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.config.messages import reason
from launcher.errors import ConfigError
from launcher.process.files import parse_json

Record = tuple[dict[str, object], str]
"""Values by field, and their place in the files, for messages."""
ROWS = 1000
FILES = "data.files"


def read_jsonl(path: Path, fields: list[str], key: str = FILES) -> Iterator[Record]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield record_of(line, f"{key}: {where}"), where


def record_of(line: bytes, where: str) -> dict[str, object]:
    try:
        record = parse_json(line)
    # This includes text that is not UTF-8.
    except ValueError as error:
        raise ConfigError(f"{where}: is not JSON ({error}).") from error
    if not isinstance(record, dict):
        raise ConfigError(f'{where}: should be a JSON object; e.g. {{"text": "..."}}.')
    return record


def parquet_columns(path: Path, key: str = FILES) -> list[str]:
    with _parquet(path, key) as file:
        return list(file.schema_arrow.names)


def read_parquet(path: Path, fields: list[str], key: str = FILES) -> Iterator[Record]:
    with _parquet(path, key) as file:
        check_columns(f"{key}: {path}", fields, file.schema_arrow.names)
        row = 0
        for batch in file.iter_batches(batch_size=ROWS, columns=fields):
            for record in batch.to_pylist():
                row += 1
                yield record, f"{path}, row {row}"


@contextmanager
def _parquet(path: Path, key: str) -> Iterator[Any]:
    where = f"{key}: {path}"
    with open_parquet(path, where) as file:
        from pyarrow import ArrowException

        try:
            yield file
        except (ArrowException, OSError) as error:
            raise _unreadable(where, error) from error


def open_parquet(file: object, where: str, **options: bool) -> Any:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise _missing_package_error(where) from error
    try:
        return ParquetFile(file, **options)
    # Errors of the network are not changed: they may pass.
    except ArrowInvalid as error:
        raise _unreadable(where, error) from error


def _unreadable(where: str, error: Exception) -> ConfigError:
    return ConfigError(f"{where}: cannot be read as Parquet ({reason(error)}).")


def read_saved(path: Path, fields: list[str], key: str = FILES) -> Iterator[Record]:
    """Read rows of a folder written by `save_to_disk` of the package datasets."""
    try:
        import datasets
    except ImportError as error:
        raise _missing_package_error(f"{key}: {path}") from error
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
    check_columns(f"{key}: {path}", fields, saved.column_names)
    row = 0
    for batch in saved.select_columns(fields).with_format(None).iter(batch_size=ROWS):
        for values in zip(*(batch[field] for field in fields), strict=True):
            row += 1
            yield dict(zip(fields, values, strict=True)), f"{path}, row {row}"


def check_columns(where: str, fields: list[str], names: Sequence[str]) -> None:
    for field in fields:
        if field not in names:
            raise ConfigError(f"{where}: has no column {field}; it has {', '.join(names)}.")


def _missing_package_error(where: str) -> ConfigError:
    return ConfigError(
        f"{where}: needs the packages datasets and pyarrow; pip install 'torch-launcher[datasets]'."
    )
