"""Rows of a token store, the samples of a model that takes mappings (`model(**batch)`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from launcher.data.encoding import IGNORED
from launcher.data.token_store import TokenStore

if TYPE_CHECKING:
    from torch import Tensor


class PackedDataset:
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
        self.store, self.seq_len = store, seq_len
        self.pack = pack and store.labels is None
        self.starts, self.stops = self._ranges()
        self.fingerprint = (
            f"{store.fingerprint}, {len(self)} rows of {seq_len}{' packed' if self.pack else ''}"
        )

    def __reduce__(self) -> Any:
        return _opened, (self.store.folder, self.seq_len, self.pack)

    def __len__(self) -> int:
        return len(self.starts)

    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        ends = self.store.ends
        starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]]) if len(ends) else ends
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

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return {name: tensor[0] for name, tensor in self.get_batch(np.array([index])).items()}

    def get_batch(self, indices: np.ndarray) -> dict[str, Tensor]:
        import torch

        starts, stops = self.starts[indices], self.stops[indices]
        width = self.seq_len if self.pack else int((stops - starts).max())
        shape = (len(indices), width)
        ids = np.full(shape, self.store.meta["pad"], dtype=np.int64)
        labels, third = np.full(shape, IGNORED, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for row, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            count = stop - start
            ids[row, :count] = self.store.tokens[start:stop]
            labels[row, :count] = ids[row, :count]
            if self.store.targets is not None:
                labels[row, :count][self.store.targets[start:stop] == 0] = IGNORED
            if self.pack:
                third[row, :count] = self._positions(start, stop)
                # Padding is a document of its own.
                third[row, count:] = np.arange(width - count)
                labels[row, :count][third[row, :count] == 0] = IGNORED
            else:
                third[row, :count] = 1
        if self.store.labels is not None:
            labels = self.store.labels[indices]
        arrays = {
            "input_ids": ids,
            "position_ids" if self.pack else "attention_mask": third,
            "labels": labels,
        }
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
    first, last, row_start, row_stop = [], [], 0, 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if row_stop == start and end - row_start <= seq_len:
            row_stop = end
            continue
        if row_stop > row_start:
            first.append(row_start)
            last.append(row_stop)
        row_start, row_stop = start, min(end, start + seq_len)
    if row_stop > row_start:
        first.append(row_start)
        last.append(row_stop)
    return np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)


def _opened(folder: Any, seq_len: int, pack: bool) -> PackedDataset:
    return PackedDataset(TokenStore(folder), seq_len, pack)
