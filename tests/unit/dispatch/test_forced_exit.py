"""Time that a run may take to exit: the configured time, and less if SLURM kills the job
earlier."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from launcher.dispatch import forced_exit
from launcher.process import deadline
from launcher.slurm import scheduler
from launcher.slurm.scheduler import JobInfo, NoAnswer


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of `deadline.arm`, of a process outside SLURM."""
    arguments: list[Any] = []
    monkeypatch.setattr(deadline, "arm", lambda *given: arguments.extend(given))
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "RANK"):
        monkeypatch.delenv(name, raising=False)
    return arguments


@pytest.mark.parametrize(
    ("variables", "dispatch", "grace", "asks"),
    [
        ({}, {"grace": 120.0}, 120.0, False),
        ({}, {"grace": None}, None, False),
        ({"SLURM_JOB_ID": "12"}, {"signal_delay": 90}, 90, True),
        # Rank 0 asks for all.
        ({"SLURM_JOB_ID": "12", "RANK": "1"}, {"signal_delay": 90}, 90, False),
    ],
)
def test_only_rank_0_of_a_job_asks_slurm(
    armed: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    dispatch: dict[str, float | None],
    grace: float | None,
    asks: bool,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    forced_exit.arm(dispatch)
    assert armed[0] == grace and (len(armed) == 2) == asks


def job(state: str, ends_in: float | None) -> Callable[[str], JobInfo]:
    def info(name: str) -> JobInfo:
        # Counted from the test, not from its collection.
        end = None if ends_in is None else time.time() + ends_in
        return JobInfo(state, "None", 0, True, True, None, end, None)

    return info


def silent(name: str) -> JobInfo:
    raise NoAnswer("Unable to contact slurm controller")


@pytest.mark.parametrize(
    ("info", "kill_wait", "left"),
    [
        pytest.param(job("RUNNING", 12), 30, 37, id="in the grace of a preemption"),
        pytest.param(job("RUNNING", 100), 30, 125, id="near the time limit"),
        pytest.param(
            job("RUNNING", -3), 5, 2.5, id="at the end of the grace, which SLURM notices late"
        ),
        pytest.param(
            job("COMPLETING", 3600), 30, 25, id="cancelled, or requeued with an estimated end"
        ),
        pytest.param(job("COMPLETING", None), 6, 3, id="a short KillWait"),
        pytest.param(job("RUNNING", 3600), 30, None, id="SLURM does not show the cause yet"),
        pytest.param(job("RUNNING", None), 30, None, id="no time limit"),
        pytest.param(silent, 30, None, id="no answer"),
    ],
)
def test_slurm_s_end_follows_from_the_job(
    monkeypatch: pytest.MonkeyPatch,
    info: Callable[[str], JobInfo],
    kill_wait: float,
    left: float | None,
) -> None:
    monkeypatch.setattr(scheduler, "job_info", info)
    monkeypatch.setattr(scheduler, "kill_wait", lambda: kill_wait)
    seconds = forced_exit.seconds_left("12", grace=120)
    assert seconds == (None if left is None else pytest.approx(left, abs=20))
