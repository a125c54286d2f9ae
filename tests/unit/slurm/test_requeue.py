"""Decisions of a run after a signal inside a SLURM job, against a scripted `scontrol`."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from launcher.process import deadline, ranks, signals
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.rundir.lock_holder import Holder
from launcher.rundir.record import RunRecord
from launcher.slurm import requeue, scheduler
from launcher.slurm.causes import Budget
from launcher.slurm.job_mark import CANCEL
from launcher.slurm.journal import Journal
from launcher.slurm.requeue import QUERY_SECONDS, READ_KEY, SECOND_LOOK, Requeue, run_guarded
from support.run_maker import begin_run
from support.scripted_slurm import ANSWERS
from support.waiting import wait_for

TERM, INT, USR2 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR2
REQUEUED = ("preempted", "requeued by SLURM")
CANCELLED = ("cancelled", "the SLURM job was cancelled")


@pytest.fixture
def folder(slurm, tmp_path):
    """A run that a signal has just stopped in job 6, its state saved."""
    folder = RunFolder(tmp_path / "gpt" / "1a2b").create()
    begin_run(folder).end_attempt("preempted", end_step=4, signal="SIGTERM", exit_code=143)
    return folder


def requeue_of(folder: RunFolder, budget: Budget | None = None, restarts: int = 0) -> Requeue:
    policy = Requeue(folder, "6", budget or Budget(), sleep=lambda seconds: None)
    policy.restarts = restarts
    return policy


def leave(folder: RunFolder, signum: int = TERM, **how: Any) -> SystemExit:
    return requeue_of(folder, **how).exit_after_signal(signals.SignalExit(signum))


def state(folder: RunFolder) -> tuple[str, str]:
    record = json.loads(folder.record_path.read_text())
    return record["state"], record["attempts"][-1]["reason"]


@pytest.mark.parametrize(
    ("answer", "signum", "code", "requeues", "outcome"),
    [
        ("preempted, with a grace", TERM, 143, True, ("preempted", "preempted, requeued")),
        ("preempted without a grace, REQUEUE", TERM, 143, False, REQUEUED),
        ("warned of the time limit", USR2, 128 + USR2, True, ("preempted", "timed out, requeued")),
        ("cancelled", TERM, 143, False, CANCELLED),
        ("killed by hand", TERM, 143, False, ("preempted", None)),
    ],
)
def test_after_a_signal(slurm, folder, answer, signum, code, requeues, outcome):
    slurm.answer(answer)
    assert leave(folder, signum).code == code
    assert ("requeue 6" in slurm.calls) == requeues
    assert state(folder) == outcome
    # While the job waits, somebody else records its end, which is not the attempt's.
    RunRecord(folder).revise("cancelled", reason=CANCELLED[1], slurm_job_id="6")
    assert state(folder) == ("cancelled", outcome[1] or CANCELLED[1])


@pytest.mark.parametrize("age", [0.0, 10.0])
def test_a_preemption_that_shows_late_is_waited_for(slurm, folder, age):
    slurm.answer("killed by hand", "preempted, with a grace")
    slept: list[float] = []
    stop = signals.SignalExit(TERM)
    stop.received_at -= age
    assert Requeue(folder, "6", Budget(), sleep=slept.append).exit_after_signal(stop).code == 143
    if age:  # it would show by now: the save took that long
        assert slurm.calls == ["show job", "show config"] and slept == []
    else:
        assert slurm.calls[:3] == ["show job", "show job", "requeue 6"]
        assert 1 < slept[0] <= SECOND_LOOK


@pytest.mark.parametrize(("budget", "code"), [(Budget(), 143), (Budget(max_preemptions=0), 1)])
def test_all_ranks_exit_with_the_decision_of_rank_0(slurm, folder, monkeypatch, budget, code):
    """The other asks SLURM nothing, and exits only once rank 0 has decided."""

    class Second(Requeue):
        rank = 1

    store = torch.distributed.HashStore()
    monkeypatch.setattr(ranks, "has_met", lambda: True)
    monkeypatch.setattr(ranks, "store", lambda: store)
    monkeypatch.setenv("WORLD_SIZE", "2")
    slurm.answer("preempted, with a grace")
    second = Second(folder, "6", budget)
    second.begin()
    second.exit_by_force(TERM, "No progress")
    assert slurm.calls == []
    with ThreadPoolExecutor() as pool:
        other = pool.submit(second.exit_after_signal, signals.SignalExit(TERM))
        assert leave(folder, budget=budget).code == code
        # Rank 0 serves the store, so it waits until the others have read it.
        assert store.add(READ_KEY, 0) == 1
        assert other.result(60).code == code
    assert slurm.calls.count("requeue 6") == (code == 143)


def test_without_rank_0_the_others_exit_with_the_signal(slurm, folder, monkeypatch):
    monkeypatch.setattr(ranks, "has_met", lambda: True)
    monkeypatch.setattr(ranks, "store", torch.distributed.HashStore)
    monkeypatch.setattr(requeue, "QUERY_SECONDS", -59.9)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert leave(folder).code == 143 and slurm.calls == []


def test_the_record_of_a_run_that_another_process_has_is_not_touched(slurm, folder):
    """It was taken over on another machine."""
    before = folder.record_path.read_bytes()
    folder.lock_path.write_text(
        json.dumps(asdict(replace(Holder.current(), host="node7", slurm_job_id="99")))
    )
    slurm.answer("preempted, with a grace")
    assert leave(folder).code == 143 and "requeue 6" in slurm.calls
    assert folder.record_path.read_bytes() == before


@pytest.mark.parametrize(
    ("later", "code", "outcome"),
    [
        ("preempted, with a grace", 1, "failed"),
        # SLURM has requeued the job itself.
        ("preempted without a grace, REQUEUE", 143, "preempted"),
    ],
)
def test_a_rejected_requeue_is_a_failure_unless_slurm_was_first(
    slurm, folder, later, code, outcome
):
    slurm.answer("preempted, with a grace", later)
    slurm.reject("Requested operation is presently disabled for job 6")
    assert leave(folder).code == code
    assert state(folder)[0] == outcome
    assert ("could not be requeued: " in state(folder)[1]) == (outcome == "failed")


def test_a_budget_that_is_spent_fails_the_run(slurm, folder):
    slurm.answer("preempted without a grace, CANCEL")
    Requeue(folder, "6", Budget(max_preemptions=0)).request_early(TERM)
    assert leave(folder, budget=Budget(max_preemptions=0)).code == 1
    outcome, reason = state(folder)
    assert outcome == "failed" and "dispatch.max_preemptions=0" in reason
    assert "requeue 6" not in slurm.calls
    assert json.loads(folder.record_path.read_text())["attempts"][-1]["exit_code"] == 1


@pytest.mark.parametrize(
    ("seconds", "mode", "grace", "requeues"),
    [
        (0, "REQUEUE", 30, False),
        (10, "REQUEUE", 30, True),
        (0, "CANCEL", 30, True),
        (0, "REQUEUE", 0, True),
    ],
)
def test_a_job_cancelled_in_the_second_of_its_preemption_is_not_requeued(
    slurm, folder, seconds, mode, grace, requeues
):
    """It looks like a job at the end of its grace, which SLURM itself has requeued under REQUEUE by
    then."""
    (slurm.folder / "config").write_text(
        f"PartitionName=p Default=YES GraceTime={grace} PreemptMode={mode}\n"
    )
    slurm.answer("preempted, at the end of its grace, CANCEL")
    slurm.change(EndTime=time.time(), PreemptTime=time.time())
    stop = signals.SignalExit(TERM)
    stop.received_at = time.monotonic() - seconds
    requeue_of(folder).exit_after_signal(stop)
    assert ("requeue 6" in slurm.calls) == requeues
    assert state(folder)[0] == ("preempted" if requeues else "cancelled")


@pytest.mark.parametrize(("grace", "is_rejected"), [("0", True), ("30", False)])
def test_preemptions_that_slurm_requeues_by_itself_count(
    slurm, folder, monkeypatch, capsys, grace, is_rejected
):
    """The job is in the queue already, so its next start is rejected."""
    monkeypatch.setenv("SLURM_JOB_PARTITION", "nograce")
    (slurm.folder / "config").write_text(
        f"PartitionName=nograce GraceTime={grace} PreemptMode=REQUEUE\n"
    )
    slurm.answer("preempted without a grace, REQUEUE")
    assert leave(folder).code == 143
    slurm.answer("started again, not touched")
    policy = requeue_of(folder, Budget(max_preemptions=0), restarts=1)
    if not is_rejected:  # a user's own requeue
        policy.begin()
        return
    with pytest.raises(SystemExit) as end:
        policy.begin()
    assert end.value.code == 1
    outcome, reason = state(folder)
    assert outcome == "failed" and "(dispatch.max_preemptions=0)" in reason
    assert capsys.readouterr().err.count("max_preemptions=0") <= 1


def test_a_cancellation_after_the_requeue_wins(slurm, folder):
    slurm.answer("preempted, with a grace")
    slurm.requeue_as("requeued, then cancelled")
    assert leave(folder).code == 143
    assert "requeue 6" in slurm.calls and state(folder) == CANCELLED


@pytest.mark.parametrize("answer", ANSWERS)
def test_job_that_slurm_ends_without_a_grace_is_requeued_during_the_save(slurm, folder, answer):
    """No other job is, and `leave` decides as without it."""
    slurm.answer(answer)
    policy = requeue_of(folder)
    policy.request_early(TERM)
    is_early = "requeue 6" in slurm.calls
    assert is_early == (answer.startswith("preempted") and answer.endswith("CANCEL"))
    if is_early:
        assert policy.exit_after_signal(signals.SignalExit(TERM)).code == 143
        assert slurm.calls.count("requeue 6") == 1
        assert state(folder) == ("preempted", "preempted, requeued")


def test_slow_requeue_is_requested_when_the_signal_comes(slurm, folder):
    """It is done before the save is, and the budget holds."""
    deadline.arm(None)
    handlers = signals.install([TERM])
    try:

        def save():
            slurm.answer("preempted without a grace, CANCEL")
            os.kill(os.getpid(), TERM)
            wait_for(lambda: "requeue 6" in slurm.calls)
            begin_run(folder, 4).end_attempt(
                "preempted", end_step=5, signal="SIGTERM", exit_code=143
            )
            raise signals.SignalExit(TERM)

        with pytest.raises(signals.SignalExit):
            run_guarded(save, folder, Budget())
    finally:
        signals.restore(handlers)
        signals.forget()
        deadline.disarm()
    assert slurm.calls.count("requeue 6") == 1
    assert state(folder) == ("preempted", "preempted, requeued")


def test_job_is_requeued_once_although_the_save_ends_during_the_request(slurm, folder, monkeypatch):
    """SLURM still shows the preemption while the request is under way."""
    slurm.answer("preempted without a grace, CANCEL")
    requested, request = threading.Event(), scheduler.requeue

    def slow_request(job: str) -> None:
        requested.set()
        time.sleep(0.5)  # it looks meanwhile, or waits
        request(job)

    monkeypatch.setattr(scheduler, "requeue", slow_request)
    policy = requeue_of(folder)
    with ThreadPoolExecutor(1) as thread:
        early = thread.submit(policy.request_early, TERM)
        requested.wait(60)
        assert policy.exit_after_signal(signals.SignalExit(TERM)).code == 143
        early.result()
    assert slurm.calls.count("requeue 6") == 1
    assert state(folder) == ("preempted", "preempted, requeued")


@pytest.mark.parametrize("job", ["6", "5"])
def test_job_that_runs_cancel_has_noted_is_not_requeued(slurm, folder, job):
    """SLURM does not show it of a job that it is ending already. A note about an earlier job of the
    run has no effect."""
    slurm.answer("preempted without a grace, CANCEL")
    CANCEL.write(folder, job)
    policy = requeue_of(folder)
    policy.request_early(TERM)
    assert policy.exit_after_signal(signals.SignalExit(TERM)).code == 143
    assert ("requeue 6" in slurm.calls) == (job == "5")
    assert state(folder)[0] == ("cancelled" if job == "6" else "preempted")


def test_cancel_note_that_comes_with_the_requeue_cancels_the_requeued_job(
    slurm, folder, monkeypatch
):
    cancelled: list[str] = []
    monkeypatch.setattr(scheduler, "requeue", lambda job: CANCEL.write(folder, job))
    monkeypatch.setattr(scheduler, "cancel", cancelled.extend)
    slurm.answer("preempted without a grace, CANCEL")
    Requeue(folder, "6", Budget()).request_early(TERM)
    assert cancelled == ["6"]


def test_cancellation_recorded_by_runs_cancel_stays(slurm, folder):
    RunRecord(folder).revise("cancelled", reason="the SLURM job was cancelled", slurm_job_id="6")
    slurm.answer("preempted, with a grace")
    assert leave(folder).code == 143
    assert state(folder)[0] == "cancelled"


def test_slurm_that_never_answers_leaves_a_preempted_run(slurm, folder, caplog):
    slurm.stop_answering()
    slept: list[float] = []
    policy = Requeue(folder, "6", Budget(), sleep=slept.append)
    assert policy.exit_after_signal(signals.SignalExit(TERM)).code == 143
    assert sum(slept) >= QUERY_SECONDS and "requeue 6" not in slurm.calls
    assert caplog.text.count("Asking again") == 1
    outcome, reason = state(folder)
    assert outcome == "preempted" and "SLURM does not answer why: " in reason


@pytest.mark.parametrize(
    ("answer", "rejection", "reason"),
    [
        ("preempted, with a grace", "", "preempted, requeued"),
        ("killed by hand", "", "cause unknown, requeued"),
        *(
            ("preempted, with a grace", text, "preempted, requeued")
            for text in (
                "Unexpected message received for job 6",
                "slurm_requeue error: Slurm backup controller in standby mode",
                "Socket timed out on send/recv operation",
            )
        ),
    ],
)
def test_slurm_that_answers_late_is_asked_again(slurm, folder, answer, rejection, reason):
    """The asking ends when SLURM answers; a controller that dies has rejected nothing."""
    slurm.answer(answer)
    slurm.reject(rejection) if rejection else slurm.stop_answering()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            (slurm.folder / "rejection").unlink() if rejection else slurm.answer_again()

    policy = Requeue(folder, "6", Budget(), sleep=sleep)
    assert policy.exit_after_signal(signals.SignalExit(TERM)).code == 143
    assert slurm.calls.count("requeue 6") == (4 if rejection else 1)
    assert state(folder) == ("preempted", reason)


def test_a_late_signal_of_the_previous_start_requeues(slurm, folder):
    slurm.answer("started again, not touched")
    slurm.change(StartTime=time.time())
    slurm.requeue_as("started again, not touched", restarts=2)
    assert leave(folder, restarts=1).code == 143
    assert "requeue 6" in slurm.calls and state(folder) == ("preempted", "cause unknown, requeued")


@pytest.mark.parametrize("saved", [0, 3, 4])
def test_a_forced_exit_records_why_the_job_ended(slurm, folder, saved):
    """The run's lock is still held, by this process."""
    if saved:
        (folder.checkpoints / f"step-{saved:08d}").mkdir(parents=True)
        (folder.checkpoints / f"step-{saved:08d}" / "manifest.json").touch()
    begin_run(folder, 4).end_attempt(
        "failed", end_step=4, signal="SIGTERM", exit_code=1, reason="No progress"
    )
    slurm.answer("cancelled")
    with RunLock(folder):
        Requeue(folder, "6", Budget()).exit_by_force(INT, "No progress for 2 s after SIGINT")
        assert slurm.calls == []
        Requeue(folder, "6", Budget()).exit_by_force(TERM, "No progress for 2 s after SIGTERM")
    is_saved = "its last step is saved. " if saved == 4 else ""
    expected = f"the SLURM job was cancelled; {is_saved}No progress for 2 s after SIGTERM"
    assert state(folder) == ("cancelled", expected)


@pytest.mark.parametrize("outcome", ["preempted", "killed"])
@pytest.mark.parametrize(
    ("budget", "states"),
    [(Budget(max_fruitless_restarts=0), ["failed"]), (Budget(), [])],
    ids=["rejected", "preempted"],
)
def test_a_launch_that_ends_before_its_attempt_leaves_the_attempt_of_the_launch_before(
    slurm, folder, outcome, budget, states
):
    Requeue(folder, "6", budget).begin()
    record = begin_run(folder, 4)
    if outcome != "killed":
        record.end_attempt(outcome, end_step=5, signal="SIGTERM", exit_code=143)
    policy = requeue_of(folder, budget)
    if not states:
        slurm.answer("preempted, with a grace")
        slurm.requeue_as("preempted without a grace, REQUEUE")
    with pytest.raises(SystemExit if states else signals.SignalExit) as end:
        policy.begin()
    if not states:
        policy.exit_after_signal(end.value)
    record = RunRecord(folder)
    assert record.state == (states or ["preempted"])[0]
    assert [attempt["outcome"] for attempt in record.attempts[1:]] == [outcome, *states]


@pytest.mark.parametrize(
    ("answer", "trained", "is_rejected"),
    [
        ("preempted, with a grace", False, False),
        ("preempted without a grace, REQUEUE", False, False),
        ("preempted, with a grace", True, True),
        ("at its time limit", False, True),
    ],
)
def test_only_a_start_that_had_the_time_to_save_is_fruitless(
    slurm, folder, answer, trained, is_rejected
):
    for start in range(4):
        slurm.answer("killed by hand")
        policy = requeue_of(folder, Budget(max_fruitless_restarts=2))
        if is_rejected and start == 3:
            with pytest.raises(SystemExit):
                policy.begin()
            assert "3 times in a row" in state(folder)[1]
            return
        policy.begin()
        begin_run(folder, 4).end_attempt(
            "preempted", end_step=5 if trained else 4, signal="SIGTERM"
        )
        slurm.answer(answer)
        slurm.requeue_as("preempted without a grace, REQUEUE")
        policy.exit_after_signal(signals.SignalExit(TERM))


def test_a_job_that_is_being_ended_does_not_start(slurm, folder):
    slurm.answer("preempted, with a grace")
    with pytest.raises(signals.SignalExit):
        run_guarded(lambda: pytest.fail("it has started"), folder, Budget())
    assert "requeue 6" in slurm.calls


def test_a_completed_run_does_not_ask(slurm, folder):
    record = begin_run(folder, 4)
    record.progress(10, force=True)
    record.end_attempt("completed", end_step=10, exit_code=0)
    Requeue(folder, "6", Budget()).begin()
    assert slurm.calls == []


def stop_work(slurm: Any, folder: RunFolder, signum: int, answer: str, **budget: Any) -> None:
    """Run work that a signal ends, and for which SLURM then has this answer."""

    def work() -> None:
        slurm.answer(answer)
        raise signals.SignalExit(signum)

    with pytest.raises(signals.SignalExit) as stop:
        run_guarded(work, folder, Budget(**budget))
    assert stop.value.code == 128 + signum


@pytest.mark.parametrize(("signum", "requeues"), [(TERM, True), (INT, False)])
def test_work_is_guarded(slurm, folder, signum, requeues):
    stop_work(slurm, folder, signum, "preempted, with a grace")
    assert ("requeue 6" in slurm.calls) == requeues


@pytest.mark.parametrize("answer", ["preempted, with a grace", "cancelled", "killed by hand"])
def test_a_trial_leaves_the_requeue_to_its_search(slurm, folder, monkeypatch, answer):
    """The same holds for a trial that the search has stopped, soon after a restart of the job: it
    may not requeue the job."""
    monkeypatch.setenv("LAUNCHER_PARENT", "1")
    stop_work(slurm, folder, TERM, answer)
    assert "requeue 6" not in slurm.calls
    assert state(folder)[0] == "preempted" and Journal(folder, "6").fruitless() == 0


def test_a_run_of_a_sweep_that_is_restarted_in_vain_fails_alone(slurm, folder, monkeypatch):
    monkeypatch.setenv("LAUNCHER_PARENT", "1")
    for _ in range(4):
        assert run_guarded(lambda: 7, folder, Budget()) == 7
    with pytest.raises(SystemExit) as end:
        run_guarded(lambda: 7, folder, Budget())
    assert end.value.code == 1 and state(folder)[0] == "failed"
    assert "requeue 6" not in slurm.calls


def test_a_search_is_requeued_without_end_and_leaves_no_record(slurm, tmp_path):
    study = RunFolder(tmp_path / "studies" / "digits").create()
    for _ in range(5):
        slurm.answer("killed by hand")
        stop_work(slurm, study, TERM, "preempted, with a grace", max_fruitless_restarts=None)
        assert "requeue 6" in slurm.calls
    assert [path.name for path in study.path.iterdir() if path.is_file()] == ["restarts.json"]


def test_outside_of_slurm_nothing_is_asked(slurm, folder, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    assert run_guarded(lambda: 7, folder, Budget()) == 7 and slurm.calls == []


@pytest.mark.parametrize(
    ("states", "marked", "is_requeued"),
    [
        (("preempted", "preempted"), (), True),
        (("preempted", "preempted"), (0,), True),
        (("preempted", "preempted"), (0, 1), False),
        (("preempted", "completed"), (0,), False),
        (("failed", "completed"), (0,), True),
    ],
)
def test_the_job_of_a_sweep_is_cancelled_with_all_its_open_runs(
    slurm, tmp_path, states, marked, is_requeued
):
    slurm.answer("killed by hand", "preempted, with a grace")
    runs = [RunFolder(tmp_path / "gpt" / str(number)).create() for number in range(2)]
    for run, state in zip(runs, states, strict=True):
        code = 0 if state == "completed" else 1
        begin_run(run).end_attempt(state, end_step=10, exit_code=code, reason="old")
    CANCEL.write(runs[0], "6")  # of an earlier launch
    before = [run.record_path.read_bytes() for run in runs]

    def stop() -> None:
        for number in marked:
            CANCEL.write(runs[number], "6")
        raise signals.SignalExit(TERM)

    with pytest.raises(SystemExit) as end:
        run_guarded(stop, None, Budget(max_fruitless_restarts=None), runs)
    assert end.value.code == 143 and ("requeue 6" in slurm.calls) == is_requeued
    assert [run.record_path.read_bytes() for run in runs] == before, "the runs record their ends"
