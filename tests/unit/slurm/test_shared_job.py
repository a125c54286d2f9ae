"""A job with several runs: which of them are still its own, and what its end means for them."""

import signal

import pytest

from launcher.dispatch.slurm_runs import RunPool, _has_failed
from launcher.dispatch.slurm_task import close
from launcher.process import signals
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.runs.act.cancel import has_other_runs
from launcher.runs.find_runs import join_queue
from launcher.runs.stored_run import StoredRun
from launcher.slurm import not_started
from launcher.slurm.causes import Budget
from launcher.slurm.job_mark import CANCEL
from launcher.slurm.requeue import Requeue
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.shared_job import is_open, job_folder, others_of, runs_of, write_runs
from launcher.slurm.submission import Submission, freeze
from support.run_maker import begin_run

OPEN = ("running", "preempted", "queued")
STATES = (*OPEN, "failed", "completed", "cancelled")


@pytest.fixture
def script(tmp_path):
    return tmp_path / ".slurm" / "1" / "job-0.sh"


@pytest.fixture
def job(tmp_path, script, monkeypatch):
    """The folder of job 6, with a run in each state."""
    monkeypatch.setenv("SLURM_JOB_ID", "6")
    runs = []
    for state in STATES:
        run = RunFolder(tmp_path / "gpt" / state)
        note = Submission(str(script), job_id="6", is_shared=True)
        freeze(run, {"run": {"dir": str(run.path)}}, None, note)
        record = begin_run(run) if state != "queued" else None
        if record is not None and state != "running":
            code = 0 if state == "completed" else 1
            record.end_attempt(state, end_step=10, exit_code=code, reason="old")
        runs.append(run)
    write_runs(job_folder(script), runs)
    return RunFolder(job_folder(script))


def states(job: RunFolder) -> dict[str, str | None]:
    return {run.path.name: RunRecord(run).state for run in runs_of(job)}


def test_a_run_leaves_its_job_when_it_has_ended(job, script):
    are_open = {*OPEN}
    assert {run.path.name for run in runs_of(job) if is_open(run, str(script))} == are_open
    queue = {"6": QueuedJob("6", "RUNNING", "None", "n1", str(script))}
    stored = [StoredRun.read(run.path) for run in runs_of(job)]
    join_queue(stored, queue)
    assert {run.id for run in stored if run.job is not None} == are_open

    (running, *_) = runs_of(job)
    note = Submission.read(running)
    assert note is not None
    assert {run.path.name for run in others_of(running, note)} == are_open - {"running"}
    of_job = [run for run in stored if run.job is not None]
    assert has_other_runs(of_job[0], of_job[:2]) and not has_other_runs(of_job[0], of_job)
    freeze(running, {"run": {}}, None, Submission("another.sh"))
    assert not is_open(running, str(script)), "it was submitted again"
    assert _has_failed(job, str(script))
    for run in runs_of(job):
        freeze(run, {"run": {}}, None, Submission("another.sh"))
    assert not _has_failed(job, str(script))


@pytest.mark.parametrize(
    ("answer", "noted", "state"),
    [
        ("preempted, with a grace", 0, "preempted"),
        ("preempted, with a grace", 2, "preempted"),
        ("preempted, with a grace", 3, "cancelled"),
        ("cancelled", 0, "cancelled"),
    ],
)
def test_the_end_of_a_job_is_the_end_of_its_open_runs(job, slurm, tmp_path, answer, noted, state):
    slurm.answer(answer)
    before = states(job)
    for name in OPEN[:noted]:
        CANCEL.write(RunFolder(tmp_path / "gpt" / name), "6")
    assert leave(job) == 143
    assert ("requeue 6" in slurm.calls) == (state == "preempted")
    assert states(job) == before | dict.fromkeys(OPEN, state)


def leave(job: RunFolder) -> int | str | None:
    stop = signals.SignalExit(signal.SIGTERM)
    return Requeue(job, "6", Budget(), sleep=lambda seconds: None).exit_after_signal(stop).code


def note_failed_start(job: RunFolder) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["not_started", str(job.path), "1", "module load x"])
        return not_started.main()


def note_silent_end(job: RunFolder) -> None:
    for run in runs_of(job):
        not_started.record_silent_end(run, 7)


def close_all(job: RunFolder) -> None:
    for run in runs_of(job):
        close(run, "told to")


def cancel_parts(job: RunFolder) -> None:
    pool = RunPool(runs_of(job), slots=2, ranks=1)
    for number in range(len(STATES)):
        pool.cancelled.add(number)
        pool._settle(number, 143)


@pytest.mark.parametrize(
    ("answer", "write"),
    [
        ("cancelled", leave),
        ("preempted, with a grace", leave),
        *(("killed by hand", each) for each in (note_failed_start, note_silent_end)),
        *(("killed by hand", each) for each in (close_all, cancel_parts)),
    ],
)
@pytest.mark.parametrize("all_newer", [False, True])
def test_a_job_leaves_runs_alone_that_have_a_newer_job(
    job, script, slurm, monkeypatch, answer, write, all_newer
):
    slurm.answer(answer)
    monkeypatch.setenv("LAUNCHER_SCRIPT", str(script))
    runs = runs_of(job)
    for run in runs if all_newer else ():
        freeze(run, {"run": {"dir": str(run.path)}}, None, Submission("another.sh"))
    before = {run.path: run.record_path.read_bytes() for run in runs}
    write(job)
    changed = [run for run in runs if run.record_path.read_bytes() != before[run.path]]
    assert bool(changed) != all_newer


@pytest.mark.parametrize("code", [7, 200, -9, 0])
def test_a_run_that_ends_without_a_record_says_with_which_code(job, monkeypatch, code):
    run = runs_of(job)[0]
    pool = RunPool([run], slots=2, ranks=1)
    pool._settle(0, code)
    assert RunRecord(run).state == "failed" and pool.num_failed == 1
    how = "killed by signal 9" if code < 0 else f"exit code {code} in the middle"
    assert how in str(RunRecord(run).attempts[-1]["reason"])


def test_a_job_that_did_not_start_has_failed_for_its_open_runs(job, slurm):
    (job.logs / "slurm-6.log").write_text("no such module\n")
    before = states(job)
    assert note_failed_start(job) == 0
    assert states(job) == before | dict.fromkeys(OPEN, "failed")
    reason = RunRecord(runs_of(job)[0]).attempts[-1]["reason"]
    assert reason is not None and reason.endswith("before the run started: no such module")


def test_each_run_has_its_share_of_the_node(job, monkeypatch):
    monkeypatch.setattr("launcher.dispatch.pool.count_gpus", lambda: 4)
    monkeypatch.setattr("launcher.dispatch.slurm_runs.count_cores", lambda: 24)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    # The job has one run only, but the share is that of two.
    pool = RunPool(runs_of(job)[:1], slots=2, ranks=2)
    share = pool.environment(1)
    assert (share["OMP_NUM_THREADS"], share["CUDA_VISIBLE_DEVICES"]) == ("6", "2,3")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert pool.environment(0)["OMP_NUM_THREADS"] == "2"
