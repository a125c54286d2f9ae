"""A job that fails before Python: what run.json says afterwards."""

import json
from dataclasses import asdict, replace

import pytest

from launcher.dispatch.slurm.task import close
from launcher.process.child import TAIL_BYTES
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import Holder
from launcher.rundir.record import RunRecord
from launcher.slurm.causes import Budget
from launcher.slurm.not_started import last_line, record_failure, record_silent_end
from launcher.slurm.requeue import Requeue
from support.run_maker import begin_run


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "gpt" / "1a2b").create()
    RunRecord(folder).queue()
    (folder.logs / "slurm-6.log").write_text("module: command not found\n\n")
    return folder


@pytest.mark.parametrize(
    ("answer", "state", "attempts"),
    [
        ("killed by hand", "failed", 1),  # SLURM has not touched it: it failed by itself
        ("cancelled", "cancelled", 1),
        ("preempted, with a grace", "queued", 0),
        ("preempted without a grace, REQUEUE", "queued", 0),
        (None, "failed", 1),  # it does not answer
    ],
)
def test_the_reason_is_recorded_unless_slurm_starts_the_job_again(
    folder, slurm, answer, state, attempts
):
    slurm.answer(answer) if answer else slurm.stop_answering()
    record_failure(folder, 127, "module load cuda")
    record = RunRecord(folder)
    assert (record.state, len(record.attempts)) == (state, attempts)
    if attempts:
        assert (record.attempt["exit_code"], record.attempt["slurm_job_id"]) == (127, "6")
        assert record.attempt["reason"] == (
            "'module load cuda' ended the job with exit code 127, before the run started:"
            " module: command not found"
        )


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_a_recorded_end_stays(folder, slurm, state):
    begin_run(folder).end_attempt(state, end_step=10, exit_code=0)
    before = folder.record_path.read_bytes()
    record_failure(folder, 1, "srun")
    assert folder.record_path.read_bytes() == before


def test_a_restart_that_fails_closes_a_preempted_run(folder, slurm):
    begin_run(folder).end_attempt("preempted", end_step=4, signal="SIGTERM", exit_code=143)
    record_failure(folder, 1, "srun")
    record = RunRecord(folder)
    assert (record.state, record.step) == ("failed", 4)
    assert [attempt["outcome"] for attempt in record.attempts] == ["preempted", "failed"]


ECHO = (
    "a\nlast line\nsrun: error: node1: task 0: Exited with exit code 127\nsrun: Terminating"
    " StepId=7.0\n"
)


@pytest.mark.parametrize(
    "text", ["a\nlast line", "a\n  last line \n\n", "x" * TAIL_BYTES + "\nlast line\n", ECHO]
)
def test_the_last_line_of_a_log(tmp_path, text):
    (tmp_path / "log").write_text(text)
    assert last_line(tmp_path / "log") == "last line"
    assert last_line(tmp_path / "no log") == ""


def reject_start(folder):
    policy = Requeue(folder, "6", Budget(max_fruitless_restarts=0))
    policy.begin()
    with pytest.raises(SystemExit):
        policy.begin()


def end_silently(folder):
    begin_run(folder)
    record_silent_end(folder)


@pytest.mark.parametrize(("job", "is_earlier_launch"), [("6", True), ("5", False)])
@pytest.mark.parametrize(
    "fail",
    [
        reject_start,
        end_silently,
        lambda folder: close(folder, "ended with exit code 1"),
        lambda folder: record_failure(folder, 1, "srun"),
    ],
)
def test_a_failure_is_recorded_though_an_earlier_launch_on_another_node_was_killed_just_now(
    folder, slurm, monkeypatch, fail, job, is_earlier_launch
):
    """It was killed while it had the lock, which looks fresh for a while."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    folder.lock_path.write_text(
        json.dumps(asdict(replace(Holder.current(), host="node7", slurm_job_id=job)))
    )
    fail(folder)
    assert (RunRecord(folder).state == "failed") is is_earlier_launch
