"""What identifies the content of a run's files."""

import os

import pytest

from launcher.runs.run_files import FILES, RunFiles


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    return tmp_path


def test_a_file_is_identified_as_it_was_when_it_was_first_read(folder):
    files = RunFiles(str(folder))
    assert files.read("run.json") == b"{}"
    (folder / "run.json").write_text("[1]")
    assert files.read("run.json") == b"[1]"
    assert files.stamp() != RunFiles(str(folder)).stamp()


@pytest.mark.parametrize("name", FILES)
def test_each_file_counts(folder, name):
    before = RunFiles(str(folder)).stamp()
    (folder / ".hydra").mkdir()
    (folder / name).write_text("now it is there")
    assert RunFiles(str(folder)).stamp() != before


def test_the_last_change_of_any_file_counts(folder):
    os.utime(folder / "run.json", (5.0, 5.0))
    files = RunFiles(str(folder))
    assert files.stamp() and files.changed == 5.0


def test_what_does_not_exist_is_known_and_what_cannot_be_read_is_not(folder):
    files = RunFiles(str(folder))
    with pytest.raises(FileNotFoundError):
        files.read("metrics.jsonl")
    assert files.stamp() == RunFiles(str(folder)).stamp()
    (folder / "metrics.jsonl").mkdir()
    with pytest.raises(OSError):
        files.read("metrics.jsonl")
    assert files.stamp() is None
