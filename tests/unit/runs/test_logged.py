"""The summary in run.json is used while metrics.jsonl is as it was; otherwise the file is read."""

import os

import pytest

from launcher.run.metrics import summary
from launcher.runs.logged import curve_and_lines
from launcher.runs.run_files import RunFiles

TEXT = '{"step": 1, "train/loss": 2}\n{"step": 2, "train/loss": 1}\n'
READ = ("█▁", '{"step": 2, "train/loss": 1}')


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(TEXT)
    return path


def listed(path, **changed):
    return curve_and_lines(RunFiles(str(path.parent)), {**summary(path), "curve": "kept", "newest": "kept", **changed})


def test_it_is_used_while_the_file_is_as_it_was(metrics):
    assert listed(metrics) == ("kept", "kept")
    assert curve_and_lines(RunFiles(str(metrics.parent)), None) == READ, "a run of an earlier version has none"


def test_a_file_of_another_size_or_time_is_read(metrics):
    then = metrics.stat().st_mtime_ns
    assert listed(metrics, size=1) == READ
    assert listed(metrics, mtime_ns=then - 1) == READ
    os.utime(metrics, ns=(then, then + 1))
    assert listed(metrics, mtime_ns=then) == READ


def test_a_file_that_is_missing_or_cannot_be_read(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("nowhere")
    assert curve_and_lines(RunFiles(str(tmp_path)), None) is None
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    assert curve_and_lines(RunFiles(str(tmp_path)), None) is None
