import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.data.encoding import Document
from launcher.data.rows import PackedDataset, pack_whole
from launcher.data.token_store import TokenStore, write_store


def rows(folder, lengths, seq_len, pack, masked=False, labels=False):
    """Documents 1 1 1, 2 2, ..., of these lengths; the first half of each is no target."""
    documents = [
        Document(
            np.full(n, i, dtype=np.int64),
            np.arange(n) >= n // 2 if masked else None,
            i % 3 if labels else None,
        )
        for i, n in enumerate(lengths, 1)
    ]
    write_store(folder / "store", documents, 0.0, {"vocab_size": 99, "pad": 0})
    return PackedDataset(TokenStore(folder / "store" / "train"), seq_len, pack)


def everything(dataset):
    return {
        name: tensor.tolist() for name, tensor in dataset.get_batch(np.arange(len(dataset))).items()
    }


def test_plain_text_is_packed_without_a_gap(tmp_path):
    dataset = rows(tmp_path, [3, 6, 2], 4, pack=True)
    assert everything(dataset) == {
        "input_ids": [[1, 1, 1, 2], [2, 2, 2, 2], [2, 3, 3, 0]],
        "position_ids": [[0, 1, 2, 0], [0, 1, 2, 3], [0, 0, 1, 0]],
        "labels": [[-100, 1, 1, -100], [-100, 2, 2, 2], [-100, -100, 3, -100]],
    }
    assert dataset.cut() == 0


def test_documents_with_targets_stay_whole_or_are_cut(tmp_path):
    dataset = rows(tmp_path, [2, 2, 3, 6, 1], 4, pack=True, masked=True)
    assert everything(dataset) == {
        "input_ids": [[1, 1, 2, 2], [3, 3, 3, 0], [4, 4, 4, 4], [5, 0, 0, 0]],
        "position_ids": [[0, 1, 0, 1], [0, 1, 2, 0], [0, 1, 2, 3], [0, 0, 1, 2]],
        "labels": [
            [-100, 1, -100, 2],
            [-100, 3, 3, -100],
            [-100, -100, -100, 4],
            [-100, -100, -100, -100],
        ],
    }
    assert dataset.cut() == 1


def test_unpacked_rows_are_as_long_as_the_longest_of_a_batch(tmp_path):
    dataset = rows(tmp_path, [3, 6, 2], 4, pack=False)
    assert everything(dataset) == {
        "input_ids": [[1, 1, 1, 0], [2, 2, 2, 2], [3, 3, 0, 0]],
        "attention_mask": [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]],
        "labels": [[1, 1, 1, -100], [2, 2, 2, 2], [3, 3, -100, -100]],
    }
    assert {name: tensor.tolist() for name, tensor in dataset[2].items()} == {
        "input_ids": [3, 3], "attention_mask": [1, 1], "labels": [3, 3]
    }  # fmt: skip
    with pytest.raises(IndexError):
        dataset[3]


def test_documents_with_classes_are_not_packed(tmp_path):
    dataset = rows(tmp_path, [3, 6], 4, pack=True, labels=True)
    batch = dataset.get_batch(np.arange(2))
    assert batch["labels"].tolist() == [1, 2] and batch["labels"].dtype == torch.int64
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_a_worker_opens_the_files_itself(tmp_path):
    dataset = rows(tmp_path, [3, 6, 2], 4, pack=True)
    text = pickle.dumps(dataset)
    assert len(text) < 500 and everything(pickle.loads(text)) == everything(dataset)


def test_the_fingerprint_has_what_divides_the_tokens(tmp_path):
    dataset = rows(tmp_path, [3, 6, 2], 4, pack=True)
    store = dataset.store
    assert dataset.fingerprint not in (
        PackedDataset(store, 4, False).fingerprint,
        PackedDataset(store, 5, True).fingerprint,
    )
    assert dataset.fingerprint == PackedDataset(store, 4, True).fingerprint


@settings(max_examples=40)
@given(st.lists(st.integers(1, 12), max_size=30), st.integers(1, 10))
def test_whole_documents_are_packed_in_order_and_fit(lengths, seq_len):
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    first, last = pack_whole(starts, ends, seq_len)
    assert ((last - first) <= seq_len).all() and (last > first).all()
    covered = [place for a, b in zip(first, last, strict=True) for place in range(a, b)]
    documents = zip(starts, lengths, strict=True)
    assert covered == [p for s, n in documents for p in range(s, s + min(n, seq_len))]
    assert all(b in ends or b - a == seq_len for a, b in zip(first, last, strict=True))
