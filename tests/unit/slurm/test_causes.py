"""Decisions of a job after a signal, by the fields that a real SLURM had for it then."""

import os
import re
import shlex
import signal
import subprocess

import pytest

from launcher.rundir.folder import RunFolder
from launcher.slurm.causes import Budget, cause_of, decide, forgets, unrecorded_end
from launcher.slurm.journal import Journal
from launcher.slurm.sbatch import GUARD
from launcher.slurm.scheduler import ENDING, PENDING, RUNNING, JobInfo, parse_job
from support.scripted_slurm import ANSWERS

TERM, USR1, USR2 = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
NEVER = Budget(max_preemptions=0, max_timeouts=0)
NO_FAILURES = ("CANCELLED", "PREEMPTED", "TIMEOUT")
REASONS = (
    "BootFail",
    "DeadLine",
    "JobLaunchFailure",
    "NodeDown",
    "NonZeroExitCode",
    "OutOfMemory",
    "RaisedSignal:9(Killed)",
    "SystemFailure",
)
"""SLURM's reasons of jobs that have failed."""


@pytest.mark.parametrize(
    ("what", "signum", "cause", "action"),
    [
        ("preempted, with a grace", TERM, "preempted", "requeue"),
        ("preempted, with a grace", USR2, "preempted", "requeue"),
        ("preempted without a grace, REQUEUE", TERM, "requeued", "leave"),
        ("preempted without a grace, REQUEUE", USR2, "requeued", "leave"),
        ("preempted without a grace, CANCEL", TERM, "preempted", "requeue"),
        ("warned of the time limit", USR2, "timed out", "requeue"),
        ("warned of the time limit", USR1, "timed out", "requeue"),
        ("at its time limit", TERM, "timed out", "requeue"),
        ("requeued by hand", TERM, "requeued", "leave"),
        ("cancelled", TERM, "cancelled", "leave"),
        ("preempted, at the end of its grace, CANCEL", TERM, "preempted", "requeue"),
        ("preempted, then cancelled in its grace", TERM, "cancelled", "leave"),
        ("preempted, then cancelled in its grace", USR2, "cancelled", "leave"),
        ("requeued, then cancelled", TERM, "cancelled", "leave"),
        ("pending while it runs: an older state", TERM, "requeued", "leave"),
        ("killed by hand", TERM, "ended by hand", "leave"),
        ("an allocation", TERM, "ended by hand", "leave"),
        ("an allocation", USR1, "ended by hand", "leave"),
    ],
)
def test_slurm_says_what_a_signal_meant(what, signum, cause, action):
    found = cause_of(parse_job(ANSWERS[what]), signum, restarts=0)
    assert found == cause
    assert decide(found, Budget(), before=1000)[0] == action
    assert decide("cause unknown", NEVER, before=1000)[0] == "requeue"
    assert decide(found, NEVER, before=0)[0] == ("fail" if action == "requeue" else "leave")


# `recorded`: what run.json says of a run whose job has left the queue.
ENDS = {
    "BOOT_FAIL": ("failed", "failed", "failed"),
    "CANCELLED": ("cancelled", "cancelled", "cancelled"),
    "COMPLETED": (None, None, None),
    "DEADLINE": ("failed", "failed", "failed"),
    "FAILED": ("failed", "failed", None),
    "NODE_FAIL": ("failed", "failed", "failed"),
    "OUT_OF_MEMORY": ("failed", "failed", "failed"),
    "PREEMPTED": ("preempted", "preempted", "preempted"),
    "REVOKED": (None, None, None),
    "TIMEOUT": ("failed", "failed", None),
}
UNENDED = (*RUNNING, *PENDING, ENDING)


@pytest.mark.parametrize("state", [*ENDS, *UNENDED])
@pytest.mark.parametrize(("index", "recorded"), [(0, "queued"), (1, "running"), (2, "preempted")])
def test_an_end_that_no_run_could_record_is_what_slurm_says(state, index, recorded):
    assert unrecorded_end(state, recorded) == ENDS.get(state, (None,) * 3)[index]


@pytest.mark.parametrize(
    ("state", "reason", "cause"),
    [
        *[(state, "None", "failed") for state in ENDS if state not in NO_FAILURES],
        *[(state, "None", "ended by hand") for state in RUNNING],
        *[(state, "None", "requeued") for state in PENDING if state not in RUNNING],
        ("CANCELLED", "None", "cancelled"),
        ("PREEMPTED", "None", "preempted"),
        ("TIMEOUT", "TimeLimit", "timed out"),
        ("COMPLETING", "None", "cancelled"),
        ("COMPLETING", "TimeLimit", "timed out"),
        *[("COMPLETING", reason, "failed") for reason in REASONS],
        ("NODE_FAIL", "NodeDown", "failed"),
    ],
)
@pytest.mark.parametrize("is_requeued", [False, True])
def test_only_a_cancellation_is_one(state, reason, cause, is_requeued):
    """After a requeue, a job that is completing without a time to run starts again."""
    info = JobInfo(state, reason, int(is_requeued), True, False, 1.0, 2.0, None)
    if is_requeued and (state in (*RUNNING, "COMPLETING")):
        cause = "requeued"
    elif is_requeued and cause in ("preempted", "timed out"):
        cause = "failed"
    assert cause_of(info, TERM, restarts=0) == cause


@pytest.mark.parametrize(
    ("restarts", "after_start", "after_boot", "unknown"),
    [
        (0, 5, 1000, False),
        (0, 5, None, False),
        (0, 1000, -3, True),  # the controller has started since
        (1, 5, 1000, True),  # the job has just restarted
        (1, 1000, 1000, False),
    ],
)
def test_slurm_may_have_forgotten_the_cause(restarts, after_start, after_boot, unknown):
    received = 5000.0
    info = JobInfo(
        "RUNNING", "None", restarts, True, True, received - after_start, received + 3600, None
    )
    assert forgets(info, received, None if after_boot is None else received - after_boot) == unknown


@pytest.mark.parametrize(
    ("cause", "own", "other"),
    [
        ("preempted", "max_preemptions", "max_timeouts"),
        ("timed out", "max_timeouts", "max_preemptions"),
    ],
)
def test_budgets_are_apart(cause, own, other):
    assert decide(cause, Budget(**{own: 2}), before=1)[0] == "requeue"
    assert decide(cause, Budget(**{own: 2}), before=2)[0] == "fail"
    assert decide(cause, Budget(**{other: 0}), before=2)[0] == "requeue"


@pytest.mark.parametrize(
    ("steps", "fruitless"),
    [([0], 0), ([0, 0], 1), ([0, 0, 0], 2), ([0, 25], 0), ([0, 25, 25], 1), ([25, 0, 25], 0)],
)
def test_restarts_that_found_no_newer_checkpoint_are_counted(tmp_path, steps, fruitless):
    folder = RunFolder(tmp_path)
    for restart, step in enumerate(steps):
        Journal(folder, "12").start(restart, step)
    Journal(folder, "13").start(0, steps[-1])  # another job's
    assert Journal(folder, "12").fruitless() == fruitless
    assert (Budget(max_fruitless_restarts=1).fruitless(fruitless) is None) == (fruitless <= 1)
    assert Budget(max_fruitless_restarts=None).fruitless(1000) is None


FIELDS = ("JobState", "Reason", "Restarts", "EndTime", "PreemptTime")
WRITTEN = (
    " JobState=COMPLETED Reason=TimeLimit Restarts=7 BatchFlag=0 EndTime=None PreemptTime=2026 "
)


def as_the_script_reads_it(text, tmp_path):
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho {shlex.quote(text)}\n")
    (tmp_path / "scontrol").chmod(0o755)
    script = f"__launcher_run=/nowhere; source {GUARD}; trap - EXIT; info=$(describe 6)\n"
    script += f'for key in {" ".join(FIELDS)}; do echo "$(field "$info" $key)"; done'
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.check_output(["bash", "-c", script], text=True, env=environment).splitlines()


@pytest.mark.parametrize("what", ANSWERS)
def test_users_text_does_not_change_the_cause(what, tmp_path):
    """A comment, or the job's name; neither for the run nor for its script."""
    answer = ANSWERS[what].strip()
    written = (
        answer.replace("JobName=", f"JobName=x{WRITTEN}") + f" Command=(null) Comment=if{WRITTEN}"
    )
    assert parse_job(written) == parse_job(answer) and parse_job(answer).state
    expected = [re.findall(rf" {key}=(\S*)", answer)[:1] for key in FIELDS]
    assert as_the_script_reads_it(written, tmp_path) == [
        found[0] if found else "" for found in expected
    ]
