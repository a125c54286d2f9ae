"""Rows of files or of the Hugging Face Hub, read by the package `datasets`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from launcher.config.messages import hint, show
from launcher.data.base import DataSource
from launcher.data.custom import make
from launcher.data.file_patterns import find_files
from launcher.errors import ConfigError
from launcher.types import NonEmptyText, Patterns, PositiveInt

BUILDERS = ("parquet", "json", "csv", "text", "arrow", "imagefolder")
"""Builders of `datasets` that read files and run no code of a dataset's author."""
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
OLDEST = 4
"""The first major version of `datasets` that runs no script of a dataset."""


@dataclass(kw_only=True, eq=False)
class Datasets(DataSource):
    """Rows as mappings of columns, in torch's format; docs/data.md has examples.

    Args:
        path: a builder, parquet, json, csv, text, arrow or imagefolder, or the name of a dataset of
            the Hub, owner/name.
        config: the configuration of a dataset of the Hub.
        revision: a commit, tag or branch of a dataset of the Hub. Default None: the newest.
        files: of a builder, a path or glob, or a list of them.
        val_files: the same for the held-out rows.
        split: of a dataset of the Hub, the training split.
        val_split: the same for the held-out rows.
        columns: a sample is a tuple of these columns. Default None: a mapping of all.
        streaming: read the rows in their order, without a copy on the disk.
        shuffle_buffer: a shuffled stream draws from this many rows.
        seed: of a stream's shuffle.
        collate_fn: makes a batch of a list of samples, as in `data=custom`.
        vocab_size, seq_len, num_features, num_classes: for models whose configuration refers to
            them.
    """

    code_keys = ("path",)

    path: NonEmptyText
    config: str | None = None
    revision: str | None = None
    files: Patterns | None = None
    val_files: Patterns | None = None
    split: str = "train"
    val_split: str | None = None
    columns: list[str] | None = None
    streaming: bool = False
    shuffle_buffer: PositiveInt = 1000
    seed: int = 0
    collate_fn: Any = None
    vocab_size: PositiveInt | None = None
    seq_len: PositiveInt | None = None
    num_features: PositiveInt | None = None
    num_classes: PositiveInt | None = None

    def __post_init__(self) -> None:
        self.collate = make(self.collate_fn, "data.collate_fn")

    def check(self) -> None:
        is_builder = self.path in BUILDERS
        if not is_builder and not HUB_NAME.fullmatch(self.path):
            raise ConfigError(
                f"data.path={self.path}: should be {', '.join(BUILDERS)}, or the name of a dataset"
                f" of the Hub, owner/name{hint(self.path, BUILDERS)}"
            )
        hub_keys = ("config", "revision", "val_split")
        file_keys = ("files", "val_files")
        for key in hub_keys if is_builder else file_keys:
            value = getattr(self, key)
            if value is not None:
                other = "is for a dataset of the Hub" if is_builder else "is for a builder"
                raise ConfigError(f"data.{key}={show(value)}: {other}; leave it out.")
        if is_builder and self.files is None:
            raise ConfigError(f"data.files: data.path={self.path} reads files; name them.")
        if self.streaming and self.num_workers:
            raise ConfigError(
                f"data.num_workers={self.num_workers}: with data.streaming=true the order would"
                " depend on it; use data.num_workers=0."
            )

    def train_dataset(self) -> Any:
        return self._rows("data.files", self.files, self.split, is_training=True)

    def val_dataset(self) -> Any | None:
        if self.val_files is None and self.val_split is None:
            return None
        return self._rows("data.val_files", self.val_files, self.val_split, is_training=False)

    def _rows(self, key: str, files: Patterns | None, split: str | None, is_training: bool) -> Any:
        builder = _builder(self.path, self.config, self.revision, key, files)
        where = f"data.path={self.path}"
        if files is not None:
            split = "train"
            where = f"{key}={show(files)}"
        rows = _read(builder, split, self.streaming, where)
        take = dict if self.columns is None else partial(_tuple_of, self.columns)
        # A commit of the Hub, or of a builder the version of its code.
        commit = None if self.path in BUILDERS else builder.hash
        if not self.streaming:
            return Rows(rows.with_format("torch"), take, commit)
        shuffles = is_training and self.shuffle
        if shuffles:
            rows = rows.shuffle(seed=self.seed, buffer_size=self.shuffle_buffer)
        return Stream(rows.with_format("torch"), take, commit, shuffles)


class Rows:
    """A map-style dataset of rows."""

    def __init__(self, rows: Any, take: Callable[[Any], Any], commit: str | None):
        self.rows = rows
        self.take = take
        self.fingerprint = f"{len(rows)} samples"
        if commit:
            self.fingerprint += f", {commit}"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.take(self.rows[int(index)])


class Stream:
    """A stream of rows, resumed by its own state where that has all that it has read."""

    def __init__(self, stream: Any, take: Callable[[Any], Any], commit: str | None, shuffles: bool):
        self.stream = stream
        self.take = take
        self.fingerprint = commit
        self.keeps_state = not shuffles or stores_its_buffer()

    def __iter__(self) -> Iterator[Any]:
        return map(self.take, self.stream)

    def set_epoch(self, epoch: int) -> None:
        self.stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.stream.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)


@cache
def stores_its_buffer() -> bool:
    """Return whether the state of a shuffled stream has its buffer, which a small stream shows."""
    from datasets import Dataset
    from datasets.utils import logging

    def stream() -> Any:
        rows = Dataset.from_dict({"n": list(range(32))}).to_iterable_dataset()
        return rows.shuffle(seed=0, buffer_size=8)

    stopped = stream()
    resumed = stream()
    taken = list(islice(iter(stopped), 11))
    verbosity = logging.get_verbosity()
    # The library warns of a buffer that it does not restore.
    logging.set_verbosity_error()
    try:
        resumed.load_state_dict(stopped.state_dict())
        return [*taken, *resumed] == list(stream())
    finally:
        logging.set_verbosity(verbosity)


def _builder(path: str, config: str | None, revision: str | None, key: str, files: Any) -> Any:
    """Make the builder of a name, and check that it is one of `BUILDERS`."""
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "data=datasets: needs the package datasets; pip install 'datasets>=4'."
        ) from error
    if int(datasets.__version__.partition(".")[0]) < OLDEST:
        raise ConfigError(
            f"data=datasets: datasets {datasets.__version__} may run a dataset's script; pip"
            f" install 'datasets>={OLDEST}'."
        )
    if path in BUILDERS:
        names = [str(file) for file in find_files(key, files)]
        return datasets.load_dataset_builder(path, data_files={"train": names})
    if Path(path).exists():
        raise ConfigError(
            f"data.path={path}: is a folder here, and would be read in place of the dataset of the"
            " Hub; read its files with data.path=parquet and data.files, or move it."
        )
    try:
        builder = datasets.load_dataset_builder(path, config, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"data.path={path}: {str(error).splitlines()[0]}") from error
    own = f"datasets.packaged_modules.{builder.name}."
    if builder.name not in BUILDERS or not type(builder).__module__.startswith(own):
        raise ConfigError(
            f"data.path={path}: is read by {builder.name}, not by one of {', '.join(BUILDERS)}."
        )
    return builder


def _read(builder: Any, split: str | None, streaming: bool, where: str) -> Any:
    """Return the rows of a split, as a stream or from the cache."""
    from datasets.exceptions import DatasetGenerationError

    try:
        if streaming:
            return builder.as_streaming_dataset(split=split)
        builder.download_and_prepare()
        return builder.as_dataset(split=split)
    # Arrow's errors of a file are among the last two, and so is a split that does not exist.
    except (DatasetGenerationError, OSError, ValueError) as error:
        cause = str(error.__cause__ or error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"{where}: split {split} cannot be read by {builder.name} ({cause})."
        ) from error


def _tuple_of(columns: Sequence[str], row: Any) -> tuple[Any, ...]:
    return tuple(row[column] for column in columns)
