"""Documents (text, chats or labelled texts) of files, tokenized once."""

import errno
import json
import logging
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import xxhash

from launcher.data.encoding import Document, Encoder, tokenizer_digest
from launcher.data.file_patterns import check_files, find_files
from launcher.data.record_readers import Record, read_jsonl, read_parquet
from launcher.data.rows import PackedDataset
from launcher.data.token_store import TokenStore, make_once, write_store
from launcher.data.tokenized import TokenizedSource
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.types import UnitInterval

logger = logging.getLogger("launcher")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
VERSION = 1
"""The version of how documents become tokens. Cached tokens of other versions are not used."""


@dataclass(kw_only=True, eq=False)
class DocumentData(TokenizedSource):
    """Samples of documents, as mappings with `input_ids` and `labels`; see `rows.PackedDataset`.

    The files are read once, a record at a time, and kept as memory-mapped tokens in `cache`.

    Args:
        files: a path or glob of the documents, or a list of them.
        val_files: the same for the held-out documents. Default None: every (1 / val_fraction)-th
            document of `files`.
        pack: put several documents in a row, or with False one per row.
        predict: the same as files, for job=predict; a row is a document, and classes are not read.
    """

    files: str | list[str]
    val_files: str | list[str] | None = None
    val_fraction: UnitInterval = 0.05
    pack: bool = True
    predict: str | list[str] | None = None

    @staticmethod
    @abstractmethod
    def reader(path: Path, fields: list[str], key: str) -> Iterator[Record]:
        """Yield records with at least the named fields; `key` names the files, for messages."""

    def find(self, key: str, patterns: str | list[str]) -> list[Path]:
        return find_files(key, patterns)

    def check(self) -> None:
        super().check()
        check_files(self, self.find)

    def train_dataset(self) -> PackedDataset:
        fraction = 0.0 if self.val_files else self.val_fraction
        return self._rows("data.files", self.files, fraction, "train")

    def val_dataset(self) -> PackedDataset | None:
        if self.val_files is not None:
            return self._rows("data.val_files", self.val_files, 0.0, "train")
        if not self.val_fraction:
            return None
        return self._rows("data.files", self.files, self.val_fraction, "val")

    def predict_dataset(self) -> PackedDataset | None:
        if self.predict is None:
            return None
        store = self._store("data.predict", self.predict, 0.0, "train", is_new=True)
        rows = PackedDataset(store, self.seq_len, pack=False)
        rows.has_targets = self.fields.label is None
        return rows

    def _rows(
        self, key: str, patterns: str | list[str], val_fraction: float, part: str
    ) -> PackedDataset:
        store = self._store(key, patterns, val_fraction, part)
        rows = PackedDataset(store, self.seq_len, self.pack)
        if not len(rows):
            purpose = "train on" if part == "train" else "hold any out"
            raise ConfigError(
                f"{key}: the files have {sum(store.meta['documents'].values())} documents, too few"
                f" to {purpose} with data.val_fraction={val_fraction}; add documents or set"
                " data.val_files."
            )
        if part == "train" and (count := rows.cut()):
            logger.warning(
                "%s: %d of %d documents are longer than data.seq_len=%d and are cut.",
                key,
                count,
                store.meta["documents"][part],
                self.seq_len,
            )
        return rows

    def _store(
        self,
        key: str,
        patterns: str | list[str],
        val_fraction: float,
        part: str,
        is_new: bool = False,
    ) -> TokenStore:
        """Return the tokens of `part`, `train` or `val`. With `is_new` no document may be empty."""
        from launcher.process.ranks import on_main  # imports torch

        files = self.find(key, patterns)
        folder = self.cache_folder.absolute() / self._name(files, val_fraction, is_new)
        make_once(
            folder, partial(self._tokenize, folder, key, files, val_fraction, is_new), on_main
        )
        store = TokenStore(folder / part)
        self.check_vocab_size(store.meta["vocab_size"])
        return store

    def _name(self, files: list[Path], val_fraction: float, is_new: bool) -> str:
        """Hash everything that the tokens depend on."""
        what = [
            VERSION,
            type(self).__name__,
            [[str(file), *_stamp(file)] for file in files],
            tokenizer_digest(self.tokenizer_folder),
            vars(self.fields),
            val_fraction,
            self.num_classes if self.fields.label else None,
            is_new,
        ]
        return xxhash.xxh3_64_hexdigest(json.dumps(what).encode())

    def _tokenize(
        self, folder: Path, key: str, files: list[Path], val_fraction: float, is_new: bool
    ) -> None:
        encoder = self.encoder(has_labels=not is_new)
        size = len(encoder.tokenizer)
        logger.info("Tokenizing %d files of %s; the tokens stay in %s.", len(files), key, folder)
        meta: dict[str, object] = {"vocab_size": size, "pad": encoder.pad}
        try:
            write_store(folder, self._documents(encoder, key, files), val_fraction, meta)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise ConfigError(
                f"data.cache={self.cache_folder}: the tokens cannot be written ({error.strerror});"
                " use another folder."
            ) from error

    def _documents(self, encoder: Encoder, key: str, files: list[Path]) -> Iterator[Document]:
        for file in files:
            is_empty = True
            for record, where in type(self).reader(file, encoder.names(), key):
                is_empty = False
                signals.check()
                document = encoder(record, where)
                if len(document.ids):
                    yield document
                elif not encoder.has_labels:
                    raise ConfigError(f"{key}: {where} has no token; leave it out.")
            if is_empty:
                raise ConfigError(f"{key}: {file}: is empty; leave it out.")


class JsonlData(DocumentData):
    """A JSON object per line; see `DocumentData`."""

    reader = staticmethod(read_jsonl)


class ParquetData(DocumentData):
    """A document per row, a field per column; see `DocumentData`."""

    reader = staticmethod(read_parquet)


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and latest modification time of a file, or of a folder's files."""
    files = path.rglob("*") if path.is_dir() else [path]
    stats = [file.stat() for file in files if file.is_file()]
    return sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)
