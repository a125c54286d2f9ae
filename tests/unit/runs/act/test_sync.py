import json
import re

import pytest

from launcher.runs.__main__ import main
from launcher.trackers.follower import FollowerLock
from support.tracked import WrittenRun

FILES = {"files": {"_target_": "support.file_tracker.FileTracker"}}


@pytest.fixture
def written(tmp_path):
    """Makes a run that has logged steps 0 and 10."""

    def make(tracker=None, outcome="completed", id="aaaa1111") -> WrittenRun:
        run = WrittenRun(tmp_path / "n" / id, tracker=tracker)
        run.log(0, 10)
        run.end(outcome)
        return run

    return make


@pytest.fixture
def sync(tmp_path, capsys):
    """Runs the verb; gives (exit code, standard output, standard error)."""

    def call(*words):
        return main(["--outputs", str(tmp_path), "sync", *words]), *capsys.readouterr()

    return call


def steps(run: WrittenRun) -> list[int]:
    path = run.folder.path / "tracked.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["step"] for line in lines]


def test_all_runs_that_have_a_tracker(written, sync):
    first, second = written(FILES), written(id="bbbb2222")
    assert sync() == (0, "n/aaaa1111: files has all steps up to 10\n", "")
    assert (steps(first), steps(second)) == ([0, 10], [])


def test_a_run_that_cannot_be_read_is_named(written, sync):
    run = written(FILES)
    run.folder.record_path.write_text("")
    assert sync("aaaa") == (2, "", "'n/aaaa1111': its run.json cannot be read; repair it first.\n")


def test_a_tracker_added_later_gets_the_whole_run(written, sync):
    run = written()
    for words, which in ((["aaaa"], "n/aaaa1111"), ([], run.folder.path.parents[1])):
        code, _, error = sync(*words)
        assert code == 2 and error.startswith(f"{which}: has no tracker; name one")
    code, _, error = sync("aaaa", "tracker.tensorboard.namespace_separator=.")
    assert code == 2
    assert error.startswith("tracker.tensorboard.namespace_separator=.: the run has no tracker")
    assert sync("aaaa", "tracker=tensorboard")[0] == 0
    assert [*(run.folder.path / "tensorboard").iterdir()]
    own = "+tracker.mine={_target_:support.file_tracker.FileTracker}"
    assert sync("aaaa", own) == (0, "n/aaaa1111: mine has all steps up to 10\n", "")


def test_an_option_of_the_runs_own_tracker_is_changed(written, sync):
    target = "launcher.trackers.tensorboard.TensorBoardTracker"
    run = written({"tensorboard": {"_target_": target}})
    assert sync("aaaa", "tracker.tensorboard.namespace_separator=.")[0] == 0
    (file,) = (run.folder.path / "tensorboard").iterdir()
    assert b"train.loss" in file.read_bytes()


def test_a_tracker_that_fails(written, sync, tmp_path):
    run = written({"files": FILES["files"] | {"fails_while": str(tmp_path)}})
    code, _, error = sync("aaaa")
    assert code == 1 and error.startswith("n/aaaa1111: files: ConnectionError: the server is down")
    assert not FollowerLock(run.folder).path.exists()


STORED = "only the stored configuration"


@pytest.mark.parametrize(
    ("node", "is_own", "message"),
    [
        ({"_target_": "no_such_library.Tracker"}, True, r"\(no_such_library\.Tracker\) cannot"),
        ({**FILES["files"], "a": 1}, True, r"\(.*\) cannot be loaded: .*argument 'a'"),
        ("text", True, r"tracker\.x \(text\) cannot be loaded"),
        ({"_target_": "numpy.load"}, False, rf"^tracker\.x\._target_=numpy\.load: {STORED}"),
        ({"url": "http://evil/${oc.env:HOME}"}, False, rf"^tracker\.x\.url=.*: {STORED}"),
    ],
)
def test_a_tracker_that_cannot_be_loaded_is_a_sentence(
    written, sync, tmp_path, monkeypatch, node, is_own, message
):
    """Or may not be: somebody else's."""
    run = written({"x": node})
    if not is_own:
        monkeypatch.setenv("LAUNCHER_KEY", str(tmp_path / "key"))
    before = sorted(run.folder.path.rglob("*"))
    code, _, error = sync("aaaa")
    assert code == 2 and re.search(message, error) and error.count("\n") == 1, error
    assert sorted(run.folder.path.rglob("*")) == before


def test_the_names_of_somebody_elses_trackers_lead_nowhere(written, sync, tmp_path, monkeypatch):
    run = written({"../../evil": {"_target_": "numpy.load"}})
    monkeypatch.setenv("LAUNCHER_KEY", str(tmp_path / "key"))
    code, _, error = sync("aaaa", "tracker.wandb.mode=offline")
    assert code == 2 and STORED in error and not (run.folder.path / ".trackers").exists()


def test_a_run_with_a_live_follower_is_left_to_it(written, sync):
    run = written(FILES)
    with FollowerLock(run.folder):
        code, output, _ = sync("aaaa")
    assert code == 0 and output.endswith("keeps its trackers up to date\n") and steps(run) == []


@pytest.mark.parametrize("words", [(), ("--follow",)])
def test_a_preempted_run_keeps_its_newest_line(written, sync, words):
    run = written(FILES, outcome="preempted")
    assert sync(*words)[0] == 0 and steps(run) == [0]
    assert (run.folder.path / "tracked.state").read_text() == "preempted"
