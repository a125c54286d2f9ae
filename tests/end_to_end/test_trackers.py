"""Trackers as a user has them: chosen on the command line, or synced later."""

import json
import signal
from pathlib import Path
from shlex import split

from support import runner
from support.runner import launch, run_folder, stop_at
from support.waiting import wait_for

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


def test_one_of_two_ranks_starts_the_follower(tmp_path):
    launch(tmp_path, *TINY, FILES, "dispatch.nproc=2", "strategy=ddp", code=0)
    assert (run_folder(tmp_path) / "logs" / "tracker.log").read_text().count("of attempt 1") == 1
    assert tracked(tmp_path) == runner.metrics(tmp_path)
    assert [line["step"] for line in tracked(tmp_path)] == [*range(0, 21, 2)]
    assert (run_folder(tmp_path) / "tracked.state").read_text() == "completed"


def test_a_missing_library_rejects_the_run(tmp_path):
    rejected = launch(tmp_path, *TINY, FILES.replace("}", ",needs:no_such_library}"), code=2)
    last = rejected.output.strip().splitlines()[-1]
    assert last.startswith("tracker.files: no_such_library is not installed")
    assert not list(tmp_path.rglob("run.json"))


def test_the_follower_of_a_killed_run_marks_it_as_killed(tmp_path):
    command = ("-m", "launcher", f"paths.outputs={tmp_path}", *TINY, FILES)
    stop = stop_at(9, signum="SIGKILL", group=False)
    process = runner.start(*command, *stop, env=runner.ENVIRONMENT)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    state = run_folder(tmp_path) / "tracked.state"
    wait_for(lambda: state.exists() and state.read_text() == "killed")
