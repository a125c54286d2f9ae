"""Documents (text, chats or labelled texts) of files, tokenized once."""

import json
import logging
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import xxhash

from launcher.data.base import DataSource
from launcher.data.encoding import Document, Encoder, Fields, no_tokenizer, tokenizer_digest
from launcher.data.file_patterns import check_files, find_files
from launcher.data.record_readers import Record, read_jsonl, read_parquet
from launcher.data.rows import PackedDataset
from launcher.data.token_store import TokenStore, make_once, write_store
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.process.files import expand
from launcher.process.plural import plural
from launcher.types import NonEmptyText, Patterns, PositiveInt, UnitInterval

logger = logging.getLogger("launcher")
VERSION = 1
"""The version of how documents become tokens. Cached tokens of other versions are not used."""


@dataclass(kw_only=True, eq=False)
class DocumentData(DataSource):
    """Samples of documents, as mappings with `input_ids` and `labels`; see `rows.PackedDataset`.

    The files are read once, a record at a time, and kept as memory-mapped tokens in `cache`.

    Args:
        files: a path or glob of the documents, or a list of them.
        val_files: the same for the held-out documents. Default None: every (1 / val_fraction)-th
            document of `files`.
        predict: the same as files, for job=predict; a row is a document, and classes are not read.
        tokenizer: a folder written by `save_pretrained` of a transformers tokenizer.
        seq_len: T, the maximum number of tokens in a row.
        pack: put several documents in a row, or with False one per row.
        text_field: the field with the text, on which a model is trained.
        prompt_field: the field with a prompt before this text, on which the model is not trained.
        messages_field: the field with a chat, a list of {role, content}; the assistant's turns are
            trained on.
        label_field: the field with the class of the text, for classification.
        num_classes: the number of classes, to which models refer.
        vocab_size: the number of tokens, to which models with new weights refer.
        cache: folder for the tokens.
    """

    writes = ("cache",)

    files: Patterns
    val_files: Patterns | None = None
    val_fraction: UnitInterval = 0.05
    predict: Patterns | None = None
    tokenizer: str
    seq_len: PositiveInt = 128
    pack: bool = True
    text_field: str = "text"
    prompt_field: str | None = None
    messages_field: str | None = None
    label_field: str | None = None
    num_classes: PositiveInt | None = None
    vocab_size: PositiveInt | None = None
    cache: NonEmptyText = "outputs/.tokens"

    def __post_init__(self) -> None:
        self.tokenizer_folder = expand(self.tokenizer)
        self.fields = Fields(
            self.text_field, self.prompt_field, self.messages_field, self.label_field
        )

    @staticmethod
    @abstractmethod
    def reader(path: Path, fields: list[str], key: str) -> Iterator[Record]:
        """Yield records with at least the named fields; `key` names the files, for messages."""

    def check(self) -> None:
        self.fields.check()
        if not self.tokenizer_folder.is_dir():
            raise no_tokenizer(self.tokenizer_folder)
        if self.label_field is not None and self.num_classes is None:
            raise ConfigError(
                f"data.label_field={self.label_field}: needs data.num_classes, the number of"
                " classes."
            )
        check_files(self)

    def train_dataset(self) -> PackedDataset:
        return self._rows("files", "train")

    def val_dataset(self) -> PackedDataset | None:
        if self.val_files is not None:
            return self._rows("val_files", "train")
        return self._rows("files", "val") if self.val_fraction else None

    def predict_dataset(self) -> PackedDataset | None:
        if self.predict is None:
            return None
        rows = PackedDataset(self._store("predict", "train"), self.seq_len, pack=False)
        rows.has_targets = self.label_field is None
        return rows

    def _rows(self, name: str, part: str) -> PackedDataset:
        rows = PackedDataset(self._store(name, part), self.seq_len, self.pack)
        documents = rows.store.meta["documents"]
        if not len(rows):
            purpose = "train on" if part == "train" else "hold any out"
            found = plural(sum(documents.values()), "document")
            raise ConfigError(
                f"data.{name}: the files have {found}, too few to"
                f" {purpose} with data.val_fraction={self.val_fraction}; add documents or set"
                " data.val_files."
            )
        if part == "train" and (count := rows.cut()):
            logger.warning(
                "data.%s: %d of %d documents are longer than data.seq_len=%d and are cut.",
                name,
                count,
                documents[part],
                self.seq_len,
            )
        return rows

    def _store(self, name: str, part: str) -> TokenStore:
        """Return the tokens of `part`, `train` or `val`, of the files under `data.<name>`."""
        from launcher.process.ranks import on_main  # imports torch

        files = find_files(f"data.{name}", getattr(self, name))
        holds_out = name == "files" and not self.val_files
        val_fraction = self.val_fraction if holds_out else 0.0
        is_new = name == "predict"
        depends_on = [
            VERSION,
            type(self).__name__,
            [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files],
            tokenizer_digest(self.tokenizer_folder),
            vars(self.fields),
            val_fraction,
            self.num_classes if self.label_field else None,
            is_new,
        ]
        digest = xxhash.xxh3_64_hexdigest(json.dumps(depends_on).encode())
        folder = expand(self.cache).absolute() / digest
        make = partial(self._tokenize, folder, f"data.{name}", files, val_fraction, is_new)
        make_once(folder, make, on_main)
        store = TokenStore(folder / part)
        tokens = store.meta["vocab_size"]
        if self.vocab_size is not None and self.vocab_size < tokens:
            raise ConfigError(
                f"data.vocab_size={self.vocab_size}: the tokenizer of {self.tokenizer_folder} has"
                f" {tokens} tokens; set data.vocab_size={tokens} or more."
            )
        return store

    def _tokenize(
        self, folder: Path, key: str, files: list[Path], val_fraction: float, is_new: bool
    ) -> None:
        encoder = Encoder(self.tokenizer_folder, self.fields, self.num_classes, not is_new)
        logger.info(
            "Tokenizing %s of %s; the tokens stay in %s.", plural(len(files), "file"), key, folder
        )
        meta = {"vocab_size": len(encoder.tokenizer), "pad": encoder.pad}
        write_store(folder, self._documents(encoder, key, files), val_fraction, meta)

    def _documents(self, encoder: Encoder, key: str, files: list[Path]) -> Iterator[Document]:
        for file in files:
            is_empty = True
            for record, where in self.reader(file, encoder.names(), key):
                is_empty = False
                signals.check()
                document = encoder(record, where)
                if len(document.ids):
                    yield document
                elif not encoder.has_labels:
                    # Each document to predict has a row.
                    raise ConfigError(f"{key}: {where} has no token; leave it out.")
            if is_empty:
                raise ConfigError(f"{key}: {file}: is empty; leave it out.")


class JsonlData(DocumentData):
    """A JSON object per line; see `DocumentData`."""

    reader = staticmethod(read_jsonl)


class ParquetData(DocumentData):
    """A document per row, a field per column; see `DocumentData`."""

    reader = staticmethod(read_parquet)
