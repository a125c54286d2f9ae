import logging
import shutil
import threading
import time

import pytest

from launcher.trackers import follower as module
from launcher.trackers.base import TrackedRun
from launcher.trackers.follower import Follower, FollowerLock, acquire
from support.file_tracker import FileTracker
from support.tracked import WrittenRun
from support.waiting import wait_for

NODE = {"_target_": "support.file_tracker.FileTracker"}


@pytest.fixture
def run(tmp_path):
    run = WrittenRun(tmp_path / "name" / "abcd1234", tracker={"files": NODE})
    yield run
    run.lock.release()


def follower(run: WrittenRun, *trackers: FileTracker, **options) -> Follower:
    named = {f"files{number}": tracker for number, tracker in enumerate(trackers)}
    return Follower(TrackedRun(run.folder), named, interval=0.01, **options)


def follow(each: Follower) -> threading.Thread:
    thread = threading.Thread(target=each.follow_run, daemon=True)
    thread.start()
    return thread


def state(run: WrittenRun) -> str | None:
    path = run.folder.path / "tracked.state"
    return path.read_text() if path.exists() else None


def steps(tracker: FileTracker) -> list[int]:
    return [line["step"] for line in tracker.lines()]


@pytest.mark.parametrize(
    ("outcome", "newest"), [("completed", 20), ("failed", 20), ("preempted", 10)]
)
def test_a_tracker_follows_a_run_until_it_ends(run, outcome, newest):
    """The newest line of a run that will resume waits: its step may be evaluated again."""
    tracker = FileTracker()
    mirror = follower(run, tracker)
    thread = follow(mirror)
    run.log(0, 10)
    wait_for(lambda: getattr(tracker, "run", None) and steps(tracker) == [0])
    run.log(20)
    run.end(outcome, exit_code=0)
    thread.join(120)
    assert steps(tracker)[-1] == newest
    assert state(run) == outcome
    assert mirror.unfinished == {}


def test_a_new_attempt_has_a_follower_of_its_own(run):
    tracker = FileTracker()
    first = follower(run, tracker)
    run.log(0, 10)
    run.end("preempted")
    run.begin(start_step=5)
    assert first.state() == "superseded"
    follow(first).join(120)
    assert state(run) == "running"
    assert first.unfinished == {}


def test_a_tracker_that_fails_is_reported_once_and_tried_again(run, tmp_path, caplog):
    (tmp_path / "down").touch()
    bad, good = FileTracker(fails_while=str(tmp_path / "down")), FileTracker()
    mirror = follower(run, bad)
    thread = follow(mirror)
    run.log(0, 10)
    wait_for(lambda: mirror.unfinished["files0"].startswith("ConnectionError"))
    time.sleep(0.2)
    (tmp_path / "down").unlink()
    run.end()
    thread.join(120)
    good.run = bad.run
    assert steps(good) == [0, 10]
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == [
        "Tracker files0: ConnectionError: the server is down and says so at length. "
        "It is tried again; training continues."
    ]


def test_tracker_that_hangs_does_not_hold_up_another(run, tmp_path):
    (tmp_path / "hang").touch()
    good, other = FileTracker(), FileTracker(hangs_while=str(tmp_path / "hang"), name="other")
    mirror = follower(run, other, good, patience=0.1, hangs=0.2)
    run.log(0)
    run.end()
    thread = follow(mirror)
    wait_for(lambda: state(run) == "completed")
    thread.join(120)
    assert mirror.unfinished == {"files0": "is still being sent to"}
    (tmp_path / "hang").unlink()


def test_a_removed_run_is_left_though_a_tracker_hangs(run, tmp_path):
    (tmp_path / "hang").touch()
    mirror = follower(run, FileTracker(hangs_while=str(tmp_path / "hang")), patience=600, hangs=600)
    run.log(0, 10)
    thread = follow(mirror)
    wait_for(lambda: "files0" in mirror.steps)
    shutil.rmtree(run.folder.path)
    thread.join(120)
    assert not thread.is_alive() and mirror.unfinished == {"files0": "the run's folder was removed"}
    (tmp_path / "hang").unlink()


class Exiting(FileTracker):
    def write(self, lines: object) -> None:
        raise SystemExit("the library exits")


def test_a_run_that_ends_while_the_server_is_down_is_given_up_in_the_end(run, tmp_path):
    bad = FileTracker(fails_while=str(tmp_path))
    mirror = follower(run, bad, Exiting(name="exiting"), patience=0.1)
    run.log(0)
    run.end()
    follow(mirror).join(120)
    assert mirror.unfinished["files0"].startswith("ConnectionError")
    assert mirror.unfinished["files1"] == "SystemExit: the library exits"
    sentence, _ = module.list_unfinished(run.folder, mirror)
    assert sentence.endswith(f"Complete it with: python -m launcher.runs sync {run.folder.path}")


def test_a_tracker_keeps_what_it_has_when_resumed_values_differ(run):
    run.log(0, 10, 20, 30)
    tracker = FileTracker()
    thread = follow(follower(run, tracker))
    wait_for(lambda: hasattr(tracker, "run") and steps(tracker) == [0, 10, 20])
    run.end("preempted")
    thread.join(120)
    run.begin(start_step=10)
    lines = run.folder.metrics_path.read_text().splitlines(keepends=True)
    run.folder.metrics_path.write_text("".join(lines[:2]))
    run.log(20, 30, 40, **{"train/loss": 5.0})
    run.end()
    follow(follower(run, tracker)).join(120)
    assert [(line["step"], line["train/loss"]) for line in tracker.lines()][2:] == [
        (20, 1 / 21),
        (30, 5.0),
        (40, 5.0),
    ]


def test_run_has_one_follower_at_a_time(run):
    first = FollowerLock(run.folder)
    first.acquire()
    second = FollowerLock(run.folder)
    assert not acquire(second, lambda: True)
    threading.Timer(0.1, first.release).start()
    assert acquire(second, lambda: False, seconds=0.01)
    second.release()
