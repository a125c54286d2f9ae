"""A process that has lost the lock of its run writes nothing more."""

import os
import signal
from pathlib import Path
from shlex import split

from support.processes import Command
from support.runner import launch, metrics, record, run_folder
from support.waiting import wait_for

RUN = split(
    "model=mlp data=digits device=cpu trainer.max_steps=600 hooks.checkpointing.interval=50"
    " hooks.evaluation.interval=0 hooks.logging.interval=1 hooks.progress.interval=50"
)
PACE = ("+tracker.pace._target_=support.pacer.Pacer", "+tracker.pace.seconds=0.02")


def contents(folder: Path) -> dict[Path, bytes]:
    """Contents of every file of a run except its logs."""
    paths = (
        path for path in folder.rglob("*") if path.is_file() and path.parent != folder / "logs"
    )
    return {path: path.read_bytes() for path in paths}


def test_a_run_that_another_machine_completed_is_left_alone(tmp_path):
    """The first process is suspended, loses the run, and wakes up when it is complete."""
    run = (f"paths.outputs={tmp_path}", *RUN, "trainer.max_steps=300")
    with Command(*run, *PACE) as first:
        first.read_until("checkpoint copied")
        # It waits now: no write is between its look at the lock and the file.
        first.read_until("Step 100/")
        os.kill(first.pid, signal.SIGSTOP)
        with Command(*run, start=("-m", "support.elsewhere", "node7")) as second:
            assert second.wait() == 0, second.output
        folder = run_folder(tmp_path)
        before = contents(folder)
        os.kill(first.pid, signal.SIGCONT)
        assert first.wait() == 1
    assert "has lost the run's lock" in first.output and "Traceback" not in first.output
    after = contents(folder)
    assert {path: after.get(path) for path in before} == before
    uncommitted = after.keys() - before.keys()
    assert all(".tmp-step-" in str(path) for path in uncommitted)
    now = record(tmp_path)
    assert (now["state"], now["attempts"][-1]["host"]) == ("completed", "node7")
    assert [line["step"] for line in metrics(tmp_path)] == list(range(301))


def test_a_lock_that_was_removed_is_put_back(tmp_path):
    """Unless another process was quicker: then that one has the run."""
    with Command(f"paths.outputs={tmp_path}", *RUN, *PACE) as first:
        first.read_until("checkpoint copied")
        (run_folder(tmp_path) / "run.lock").unlink()
        first.read_until("put it back")
        launch(tmp_path, *RUN, code=2)
        os.kill(first.pid, signal.SIGSTOP)
        for task in Path(f"/proc/{first.pid}/task").iterdir():  # else it puts the lock back again
            stat = task / "stat"
            wait_for(lambda stat=stat: stat.read_text().rpartition(")")[2].split()[0] == "T")
        (run_folder(tmp_path) / "run.lock").unlink()
        with Command(f"paths.outputs={tmp_path}", *RUN, *PACE) as second:
            second.read_until("Training from")
            os.kill(first.pid, signal.SIGCONT)
            assert first.wait() == 1 and "has lost the run's lock" in first.output
            os.kill(second.pid, signal.SIGTERM)
            assert second.wait() == 128 + signal.SIGTERM, second.output
    now = record(tmp_path)
    assert [attempt["outcome"] for attempt in now["attempts"]] == ["killed", "preempted"]
    steps = [line["step"] for line in metrics(tmp_path)]
    assert steps == list(range(steps[-1] + 1))
