"""Which folders of submissions are removed."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from launcher.dispatch.slurm.stale_submissions import remove_leftovers
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.rundir.record import RunRecord
from launcher.slurm.submission import FROZEN, Submission


def submit(
    outputs: Path, submission: str, run: str, state: str, snapshot: str | None = None
) -> RunFolder:
    """A run as its newest submission leaves it."""
    folder, script = RunFolder(outputs / run).create(), outputs / ".slurm" / submission / "job-0.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    with open(script.with_name("runs-0.txt"), "a") as runs:
        runs.write(f"{folder.path}\n")
    code = None if snapshot is None else outputs / ".slurm" / snapshot / "code"
    if code is not None:
        code.mkdir(parents=True, exist_ok=True)
    saved = {
        "config": {},
        "hydra": None,
        "job": asdict(Submission(str(script))),
        "snapshot": code and str(code),
    }
    (folder.path / FROZEN).write_text(json.dumps(saved))
    record = RunRecord(folder)
    record.data["state"] = state
    record._write()
    return folder


def left(outputs: Path, *scripts: str) -> set[str]:
    (outputs / ".slurm" / "run.lock").touch()
    remove_leftovers(outputs, [str(outputs / ".slurm" / script) for script in scripts])
    return {path.name for path in (outputs / ".slurm").iterdir() if path.is_dir()}


@pytest.mark.parametrize(
    "state", ["queued", "running", "paused", "preempted", "failed", "cancelled", "completed"]
)
def test_a_submission_stays_until_its_runs_have_completed(tmp_path: Path, state: str) -> None:
    submit(tmp_path, "a", "m/1", "completed")
    submit(tmp_path, "a", "m/2", state)
    assert left(tmp_path) == (set() if state == "completed" else {"a"})


def test_a_submission_of_runs_that_are_gone_or_were_submitted_again_is_removed(
    tmp_path: Path,
) -> None:
    submit(tmp_path, "a", "m/1", "failed").record_path.unlink()
    submit(tmp_path, "b", "m/2", "failed")
    submit(tmp_path, "c", "m/2", "failed")
    assert left(tmp_path) == {"c"}


def test_a_snapshot_that_another_submission_uses_stays(tmp_path: Path) -> None:
    submit(tmp_path, "a", "m/1", "failed", snapshot="a")
    submit(tmp_path, "b", "m/1", "failed", snapshot="a")
    submit(tmp_path, "c", "m/2", "completed", snapshot="c")
    assert left(tmp_path) == {"a", "b"}


def test_a_submission_whose_job_is_in_the_queue_stays(tmp_path: Path) -> None:
    submit(tmp_path, "a", "m/1", "completed")
    assert left(tmp_path, "a/job-0.sh") == {"a"}


def test_leftovers_stay_during_a_search(tmp_path: Path) -> None:
    submit(tmp_path, "a", "m/1", "completed", snapshot="a")
    with RunLock(RunFolder(tmp_path / "studies" / "m-1")):
        assert left(tmp_path) == {"a"}
    assert left(tmp_path) == set()


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"job": null}', '{"job": {"script": 3}, "snapshot": null}']
)
def test_a_file_that_cannot_be_read_keeps_all(tmp_path: Path, text: str) -> None:
    submit(tmp_path, "a", "m/1", "completed")
    (submit(tmp_path, "b", "m/2", "failed").path / FROZEN).write_text(text)
    assert left(tmp_path) == {"a", "b"}
