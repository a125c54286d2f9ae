"""Trackers as a user has them: chosen on the command line, or synced later."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from shlex import split

import pytest

from support import runner
from support.runner import launch, run_folder, stop_at
from support.webhook import Webhook

TINY = split(
    "model=mlp data=digits device=cpu trainer.max_steps=20 hooks.logging.interval=2"
    " hooks.evaluation.interval=10 hooks.checkpointing.interval=5"
)
FILES = "+tracker.files={_target_:support.file_tracker.FileTracker}"


def tracked(outputs: Path) -> list[dict]:
    lines = (run_folder(outputs) / "tracked.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if key not in runner.TIMES}
        for line in lines
    ]


def test_a_run_that_is_stopped_and_resumed_is_mirrored_once(tmp_path: Path) -> None:
    stopped = launch(tmp_path, *TINY, FILES, *stop_at(9))
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.output
    check_complete(tmp_path, launch(tmp_path, *TINY, FILES))


def test_one_of_two_ranks_starts_the_follower(tmp_path: Path) -> None:
    check_complete(tmp_path, launch(tmp_path, *TINY, FILES, "dispatch.nproc=2", "strategy=ddp"))
    assert (run_folder(tmp_path) / "logs" / "tracker.log").read_text().count("of attempt 1") == 1


def check_complete(outputs: Path, done: runner.Outcome) -> None:
    assert done.returncode == 0, done.output
    assert tracked(outputs) == runner.metrics(outputs)
    assert [line["step"] for line in tracked(outputs)] == [*range(0, 21, 2)]
    assert (run_folder(outputs) / "tracked.state").read_text() == "completed"


def test_a_missing_library_rejects_the_run(tmp_path: Path) -> None:
    rejected = launch(tmp_path, *TINY, FILES.replace("}", ",needs:no_such_library}"))
    assert rejected.returncode == 2
    last = rejected.output.strip().splitlines()[-1]
    assert last.startswith("tracker.files: no_such_library is not installed")
    assert not list(tmp_path.rglob("run.json"))


def test_a_killed_run_is_reported_and_its_url_is_stored_nowhere(tmp_path: Path) -> None:
    """The follower outlives the run; what has been said is not said again."""
    pytest.importorskip("apprise")
    words = ("-m", "launcher", f"paths.outputs={tmp_path}", *TINY, "tracker=[notify]")
    with Webhook() as webhook:
        env = {**runner.ENVIRONMENT, "NOTIFY_URL": webhook.url}
        process = runner.start(*words, *stop_at(9, signum="SIGKILL", group=False), env=env)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        until(lambda: webhook.titles == ["stale"])
        process = runner.start(*words, env=env)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        until(lambda: webhook.titles == ["stale", "completed"])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10 and not [path for path in files if b"hunter2" in path.read_bytes()]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
