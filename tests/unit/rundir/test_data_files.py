"""The state of the files that settings of data name."""

import os

import pytest

from launcher.rundir.data_files import describe_changed_files, state_of_files

CHANGES = {
    "content": (lambda path: path.write_text("longer"), True),
    "time": (lambda path: os.utime(path, (1, 1)), True),
    "read": (lambda path: path.read_text(), False),
    "gone": (lambda path: path.unlink(), True),
    "another file": (lambda path: (path.parent / "c.txt").write_text(""), "many"),
}


@pytest.fixture
def nodes(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a.csv", "in/b.txt"):
        (tmp_path / name).write_text("x")
    return {
        "one": {"files": str(tmp_path / "in/b.txt")},
        "many": {"sources": {"web": {"dataset": [f"{tmp_path}/a.csv", f"{tmp_path}/in/*.txt"]}}},
        "folder": {"dataset": {"root": str(tmp_path)}},
    }


@pytest.mark.parametrize("kind", ["one", "many", "folder"])
@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_file_shows(tmp_path, nodes, kind, what):
    change, shows = CHANGES[what]
    before = state_of_files(nodes[kind])
    assert before is not None and before == state_of_files(nodes[kind])
    change(tmp_path / "in" / "b.txt")
    expected = shows if what != "another file" else kind != "one"
    assert (state_of_files(nodes[kind]) != before) is expected


@pytest.mark.parametrize(
    "node",
    [{}, {"files": "no/such.csv"}, {"files": "s3://bucket/a"}, {"a": "\0", "b": 9000 * "x"}],
    ids=["nothing", "missing", "a URL", "any text"],
)
def test_settings_that_name_no_file(node):
    assert state_of_files(node) is None


def test_a_class_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.Table").write_text("")
    assert state_of_files({"_target_": "data.Table"}) is None


@pytest.mark.parametrize(("mark", "is_compared"), [
    (None, False), ("8 samples", False), ("web: 8 samples; books: 3f2a", False),
    ("3f2a", True), ("web: 3f2a; books: 9c1d", True),
])  # fmt: skip
def test_changed_files_are_reported_unless_their_content_is_compared(mark, is_compared):
    assert bool(describe_changed_files("a", "b", mark)) != is_compared
    assert not describe_changed_files("a", "a", mark) and not describe_changed_files(
        None, "b", mark
    )
