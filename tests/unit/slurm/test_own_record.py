"""A job whose run was submitted again leaves the run's record to the newer job."""

import signal

import pytest

from launcher.dispatch.slurm.task import close
from launcher.process import signals
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.slurm import not_started
from launcher.slurm.causes import Budget
from launcher.slurm.requeue import Requeue
from launcher.slurm.submission import Submission, freeze
from support.run_maker import begin_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run of job 6, which this process works for."""
    monkeypatch.setenv("LAUNCHER_SCRIPT", "job-0.sh")
    folder = RunFolder(tmp_path / "gpt" / "1a2b")
    freeze(folder, {"run": {"dir": str(folder.path)}}, None, Submission("job-0.sh", job_id="6"))
    return folder


def leave(folder: RunFolder) -> None:
    begin_run(folder).end_attempt("preempted", end_step=10, signal="SIGTERM", exit_code=143)
    submit_again(folder)
    stop = signals.SignalExit(signal.SIGTERM)
    Requeue(folder, "6", Budget(), sleep=lambda seconds: None).exit_after_signal(stop)


def end_silently(folder: RunFolder) -> None:
    begin_run(folder)
    submit_again(folder)
    not_started.record_silent_end(folder, 7)


def submit_again(folder: RunFolder) -> None:
    """Submit it from another script, if it has the file `again`."""
    if (folder.path / "again").exists():
        freeze(folder, {"run": {"dir": str(folder.path)}}, None, Submission("another.sh"))


def fail_at_start(folder: RunFolder) -> None:
    submit_again(folder)
    not_started.record_failure(folder, 1, "module load x")


def close_it(folder: RunFolder) -> None:
    submit_again(folder)
    close(folder, "ended with exit code 1")


@pytest.mark.parametrize(
    ("answer", "write", "state"),
    [
        ("cancelled", leave, "cancelled"),
        ("preempted, with a grace", leave, "preempted"),
        ("killed by hand", end_silently, "failed"),
        ("killed by hand", fail_at_start, "failed"),
        ("killed by hand", close_it, "failed"),
    ],
)
@pytest.mark.parametrize("is_again", [False, True])
def test_a_job_writes_only_the_record_that_no_newer_job_has(
    folder, slurm, answer, write, state, is_again
):
    slurm.answer(answer)
    if is_again:
        (folder.path / "again").touch()
    write(folder)
    assert RunRecord(folder).state == ("queued" if is_again else state)


@pytest.mark.parametrize(
    ("code", "how"),
    [(7, "exit code 7 in the middle"), (200, "exit code 200 in"), (137, "killed by signal 9")],
)
def test_an_end_without_a_record_says_with_which_code(folder, slurm, code, how):
    begin_run(folder)
    assert not_started.record_silent_end(folder, code)
    record = RunRecord(folder)
    assert record.state == "failed" and how in str(record.attempts[-1]["reason"])
