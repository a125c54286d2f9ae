import json
import logging
import os
import signal
import threading

import pytest

from launcher.process import signals
from launcher.trackers.follower_process import FollowerProcess
from support.paths import PYTHONPATH
from support.tracked import WrittenRun
from support.waiting import wait_for


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    node = {"_target_": "support.file_tracker.FileTracker", "fails_while": str(tmp_path / "down")}
    run = WrittenRun(tmp_path / "name" / "abcd1234", tracker={"files": node})
    yield run
    run.lock.release()


def test_it_logs_a_failure_survives_signals_and_ends_with_the_run(run, tmp_path, caplog):
    (tmp_path / "down").touch()
    follower = FollowerProcess(run.folder, ["files"])
    follower.start()
    assert os.getsid(follower.process.pid) == follower.process.pid
    run.log(0, 10)
    wait_for(lambda: "the server is down" in caplog.text)
    (tmp_path / "down").unlink()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.killpg(follower.process.pid, signum)
    run.log(20)
    run.end()
    follower.wait(30)
    assert follower.process.returncode == 0
    lines = (run.folder.path / "tracked.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 10, 20]
    messages = [record for record in caplog.records if "the server is down" in record.message]
    assert [record.levelno for record in messages] == [logging.WARNING]
    assert "the server is down" in (run.folder.logs / "tracker.log").read_text()
    assert not (run.folder.path / "tracker.lock").exists()


def test_a_run_does_not_wait_for_long(run, caplog):
    """The run has not ended, so its follower does not."""
    follower = FollowerProcess(run.folder, ["files"])
    follower.start()
    follower.wait(0.1)
    assert f"python -m launcher.runs sync {run.folder.path}" in caplog.text
    threading.Timer(0.2, signals.note, [signal.SIGTERM]).start()
    follower.wait(60)  # until the signal
    assert follower.process.poll() is None
    signals.forget()
    follower.process.kill()
    wait_for(lambda: "The trackers' process was killed by signal 9" in caplog.text)


def test_without_a_tracker_nothing_is_started(run):
    follower = FollowerProcess(run.folder, [])
    follower.start()
    follower.wait()
    assert follower.process is None
