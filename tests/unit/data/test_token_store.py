import numpy as np
import pytest

from launcher.data.encoding import Document
from launcher.data.token_store import TokenStore, make_once, write_store

META = {"vocab_size": 300, "pad": 0}


def document(*ids, targets=None, label=None):
    is_target = None if targets is None else np.array(targets, dtype=bool)
    return Document(np.array(ids, dtype=np.int64), is_target, label)


def test_documents_are_divided_and_come_back(tmp_path):
    documents = [document(i, i + 1, targets=[0, 1], label=i % 2) for i in range(1, 9)]
    write_store(tmp_path / "a", documents, 0.25, META)
    train, val = TokenStore(tmp_path / "a" / "train"), TokenStore(tmp_path / "a" / "val")
    parts = [part.tolist() for part in (val.tokens, val.ends, val.labels)]
    assert parts == [[4, 5, 8, 9], [2, 4], [0, 0]]
    assert train.targets.tolist() == [0, 1] * 6 and train.tokens.dtype == np.uint16
    assert train.meta["documents"] == {"train": 6, "val": 2}
    assert train.fingerprint != val.fingerprint
    assert not list(tmp_path.glob(".*"))


def test_the_fingerprint_depends_on_the_content_alone(tmp_path):
    for name, documents in {
        "a": [document(1, 2), document(3)],
        "b": [document(1, 2), document(3)],
        "c": [document(1), document(2, 3)],
    }.items():
        write_store(tmp_path / name, documents, 0.0, META)
    a, b, c = (TokenStore(tmp_path / name / "train").fingerprint for name in "abc")
    assert a == b != c


def test_a_failure_leaves_nothing_and_the_faster_one_stays(tmp_path):
    def broken():
        yield document(1)
        raise ValueError

    with pytest.raises(ValueError):
        write_store(tmp_path / "a", broken(), 0.0, META)
    assert not list(tmp_path.iterdir())
    write_store(tmp_path / "a", [document(1)], 0.0, META)
    write_store(tmp_path / "a", [document(2)], 0.0, META)
    assert TokenStore(tmp_path / "a" / "train").tokens.tolist() == [1]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_is_made_where_it_is_not_seen(tmp_path):
    made = []

    def make():
        made.append(1)
        (tmp_path / "a").mkdir()

    make_once(tmp_path / "a", make, lambda act: None)  # rank 0 is on another node
    make_once(tmp_path / "a", make, lambda act: act())
    assert made == [1]
