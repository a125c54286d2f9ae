"""data=streaming: documents in files of any size on any store, read in blocks while training."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from launcher.data.batched import BatchDataset
from launcher.data.block_cache import BlockCache
from launcher.data.block_order import BlockOrder
from launcher.data.blocks import BlockIndex, Files, index
from launcher.data.encoding import Document, Encoder, tokenizer_digest
from launcher.data.rows import pad_documents
from launcher.data.sampler import OrderedDataset
from launcher.data.token_store import make_once
from launcher.data.tokenized import TokenizedSource
from launcher.errors import ConfigError
from launcher.process.byte_sizes import parse_size
from launcher.types import NonEmptyText, NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
"""The version of how files become blocks. Cached indices of other versions are not used."""
THREADS = 4


@dataclass(kw_only=True, eq=False)
class StreamingData(TokenizedSource):
    """Documents of JSON lines and Parquet files, which may be larger than the disk.

    A sample is a document, as with `data=jsonl data.pack=false`. An index of the blocks is made
    first. Training then fetches the blocks that it needs next, and tokenizes them.

    Args:
        files: URLs, paths or globs; by their ending .jsonl or .parquet.
        val_files: the same for the held-out documents; None: nothing is held out.
        shuffle_blocks: blocks whose documents are mixed with each other.
        block_bytes: bytes of a block of JSON lines, at least; a row group is a block.
        cache_size: the most bytes of blocks in `cache`, such as `10GB`.
        retries: further attempts of a read that fails.
        storage_options: arguments of fsspec's file system.
    """

    files: str | list[str]
    val_files: str | list[str] | None = None
    shuffle_blocks: PositiveInt = 4
    block_bytes: PositiveInt = 8_000_000
    cache: NonEmptyText = "outputs/.blocks"
    cache_size: str = "10GB"
    retries: NonNegativeInt = 6
    storage_options: dict[str, object] = field(default_factory=dict)

    def check(self) -> None:
        super().check()
        if self.num_workers:
            raise ConfigError(
                f"data.num_workers={self.num_workers}: data=streaming reads ahead with threads of"
                " its own; use 0."
            )
        if parse_size(self.cache_size) is None:
            raise ConfigError(f"data.cache_size={self.cache_size}: is not an amount; e.g. 10GB.")

    def train_dataset(self) -> StreamedDocuments:
        return self._documents("data.files", self.files)

    def val_dataset(self) -> StreamedDocuments | None:
        return None if self.val_files is None else self._documents("data.val_files", self.val_files)

    def _documents(self, key: str, patterns: str | list[str]) -> StreamedDocuments:
        from launcher.process.ranks import on_main  # imports torch

        encoder = self.encoder()
        self.check_vocab_size(len(encoder.tokenizer))
        files = Files(key, patterns, self.retries, self.storage_options)
        paths = files.find()
        what = [VERSION, self.block_bytes, [[path, *files.stamp(path)] for path in paths]]
        name = xxhash.xxh3_64_hexdigest(json.dumps(what).encode())
        stored = self.cache_folder.absolute() / f"index-{name}.npz"
        make_once(stored, lambda: index(files, paths, self.block_bytes).save(stored), on_main)
        blocks, size = BlockIndex.load(stored), int(parse_size(self.cache_size) or 0)
        cache = BlockCache(files, blocks, self.fields.names(), stored.parent, size)
        digest = tokenizer_digest(self.tokenizer_folder)
        return StreamedDocuments(cache, encoder, self.seq_len, self.shuffle_blocks, digest)


class Readers:
    """Threads that read blocks, for which Python does not wait at exit, as it does for a pool's."""

    def __init__(self, count: int):
        self.count = count
        self._tasks: SimpleQueue[tuple[Future[object], Callable[[], object]]] = SimpleQueue()
        self._started = False

    def submit(self, read: Callable[[], object]) -> Future[Any]:
        if not self._started:
            self._started = True
            for number in range(self.count):
                name = f"blocks-{number}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        future: Future[object] = Future()
        self._tasks.put((future, read))
        return future

    def _work(self) -> None:
        while True:
            future, read = self._tasks.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(read())
                except BaseException as error:
                    future.set_exception(error)


_readers = Readers(THREADS)


class StreamedDocuments(BatchDataset, OrderedDataset):
    """The dataset in which sample i is the i-th document of the blocks.

    It has `input_ids`, `attention_mask` and `labels` [B, T], int64, as long as the longest document
    of a batch; or `labels` [B] for classes. Threads fetch and tokenize the blocks of the current
    window and of the next one.
    """

    def __init__(
        self, cache: BlockCache, encoder: Encoder, seq_len: int, window: int, tokenizer: str
    ):
        self.cache, self.encoder, self.seq_len, self.window = cache, encoder, seq_len, window
        sizes = cache.index.rows
        self.starts = np.cumsum(sizes) - sizes
        self.size = int(sizes.sum())
        self.fingerprint = f"{cache.index.fingerprint}, tokenizer {tokenizer}"
        self._order: BlockOrder | None = None
        self._window: tuple[int, int] | None = None
        self._blocks: dict[int, Future[list[Document]]] = {}
        # A fast tokenizer's Rust object rejects calls from several threads at a time.
        self._encoding = threading.Lock()

    def order(self, seed: int, shuffle: bool) -> BlockOrder:
        self._order = BlockOrder(self.cache.index.rows, seed, shuffle, self.window)
        return self._order

    def read_ahead(self, position: int) -> None:
        """Begin to fetch the current window and the next one; forget other blocks."""
        if self._order is None:
            return
        epoch, window = self._order.window_at(position)
        if (epoch, window) != self._window:
            self._window = epoch, window
            blocks_of = self._order.blocks_of
            self._fetch_only([*blocks_of(epoch, window), *blocks_of(epoch, window + 1)])

    def _fetch_only(self, blocks: Sequence[int]) -> None:
        for block in self._blocks.keys() - set(blocks):
            self._blocks.pop(block).cancel()
        for block in blocks:
            self._fetch(block)

    def _fetch(self, block: int) -> Future[list[Document]]:
        if block not in self._blocks:
            self._blocks[block] = _readers.submit(partial(self._encode, block))
        return self._blocks[block]

    def _encode(self, block: int) -> list[Document]:
        records = self.cache.records(block)
        where = self.cache.index.paths[int(self.cache.index.file[block])]
        with self._encoding:
            return [
                self.encoder(record, f"{where}, record {number} of block {block}")
                for number, record in enumerate(records)
            ]

    def _documents(self, block: int) -> list[Document]:
        if block not in self._blocks and self._order is None:  # a pass from the first to the last
            self._fetch_only(range(block, min(block + 2, len(self.starts))))
        # A signal ends this wait where the loader's caller allows it, as with any other dataset.
        return self._fetch(block).result()

    def get_batch(self, indices: np.ndarray) -> dict[str, Tensor]:
        blocks = np.searchsorted(self.starts, indices, side="right") - 1
        documents = [
            self._documents(int(block))[int(index - self.starts[block])]
            for block, index in zip(blocks, indices, strict=True)
        ]
        return pad_documents(documents, self.seq_len, self.encoder.pad)
