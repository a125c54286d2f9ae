"""Rows of a token store, the samples of a model that takes mappings (`model(**batch)`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from launcher.data.batched import BatchDataset
from launcher.data.encoding import IGNORED
from launcher.data.token_store import TokenStore

if TYPE_CHECKING:
    from torch import Tensor


class PackedDataset(BatchDataset):
    """Sample i is a row of at most `seq_len` tokens.

    If packed, a row has several documents, and all rows have the same length: `input_ids`, `labels`
    and `position_ids` [B, T], int64. Positions start at 0 in each document, so that a model
    separates documents. The first token of a document is not a target. Plain text continues in the
    next row. A document with its own targets is never divided, but is cut if it is too long.

    Otherwise a row is one document, cut to `seq_len`, and a batch is as long as its longest row:
    `input_ids`, `attention_mask` and `labels` [B, T], or `labels` [B] if documents have classes.
    """

    has_targets = True
    """False for new documents whose class is not known."""

    def __init__(self, store: TokenStore, seq_len: int, pack: bool):
        self.store = store
        self.seq_len = seq_len
        self.pack = pack and store.labels is None
        self.starts, self.stops = self._ranges()
        self.size = len(self.starts)
        self.fingerprint = (
            f"{store.fingerprint}, {self.size} rows of {seq_len}{' packed' if self.pack else ''}"
        )

    def __reduce__(self) -> Any:
        return _open, (self.store.folder, self.seq_len, self.pack)

    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        ends = self.store.ends
        starts = np.concatenate([np.zeros(1, dtype=np.int64), ends])[:-1]
        if not self.pack:
            return starts, np.minimum(ends, starts + self.seq_len)
        if self.store.targets is None:
            total = int(ends[-1]) if len(ends) else 0
            # A last row of one token has no target.
            first = np.arange(0, max(total - 1, 0), self.seq_len, dtype=np.int64)
            return first, np.minimum(first + self.seq_len, total)
        return pack_whole(starts, ends, self.seq_len)

    def cut(self) -> int:
        """Return how many documents are longer than a row and lose their end."""
        if self.pack and self.store.targets is None:
            return 0
        return int((np.diff(self.store.ends, prepend=0) > self.seq_len).sum())

    def get_batch(self, indices: np.ndarray) -> dict[str, Tensor]:
        import torch

        rows = list(zip(self.starts[indices].tolist(), self.stops[indices].tolist(), strict=True))
        store = self.store
        width = self.seq_len if self.pack else max(1, *(stop - start for start, stop in rows))
        ids = np.full((len(rows), width), store.meta["pad"], dtype=np.int64)
        labels = np.full_like(ids, IGNORED)
        positions = np.zeros_like(ids)
        for row, (start, stop) in enumerate(rows):
            count = stop - start
            tokens = store.tokens[start:stop]
            ids[row, :count] = tokens
            labels[row, :count] = tokens
            if store.targets is not None:
                labels[row, :count][store.targets[start:stop] == 0] = IGNORED
            positions[row, :count] = self._positions(start, stop)
            # Padding is a document of its own.
            positions[row, count:] = np.arange(width - count)
        arrays = {"input_ids": ids}
        if self.pack:
            labels[positions == 0] = IGNORED
            arrays |= {"position_ids": positions, "labels": labels}
        else:
            lengths = [max(1, stop - start) for start, stop in rows]
            mask = np.arange(width) < np.array(lengths)[:, None]
            arrays |= {"attention_mask": mask.astype(np.int64), "labels": labels}
        if store.labels is not None:
            arrays["labels"] = store.labels[indices]
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _positions(self, start: int, stop: int) -> np.ndarray:
        """Return each token's position in its document, at most from the row's beginning."""
        ends = self.store.ends
        inside = ends[
            np.searchsorted(ends, start, side="right") : np.searchsorted(ends, stop, side="left")
        ]
        begins = np.concatenate([np.array([start]), inside])
        slots = np.arange(start, stop)
        positions: np.ndarray = slots - begins[np.searchsorted(begins, slots, side="right") - 1]
        return positions


def pack_whole(starts: np.ndarray, ends: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Make rows of as many documents as fit. A document that is too long is cut, in its own row."""
    rows: list[list[int]] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if rows and rows[-1][1] == start and end - rows[-1][0] <= seq_len:
            rows[-1][1] = end
        elif end > start:
            rows.append([start, min(end, start + seq_len)])
    first, last = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return first, last


def _open(folder: Any, seq_len: int, pack: bool) -> PackedDataset:
    return PackedDataset(TokenStore(folder), seq_len, pack)
