"""Time that a run may take to exit: the configured time, and less if SLURM kills the job
earlier."""

import time
from collections.abc import Callable

import pytest

from launcher.dispatch import forced_exit
from launcher.slurm import scheduler
from launcher.slurm.scheduler import JobInfo, NoAnswer


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
def test_slurm_s_end_follows_from_the_job(monkeypatch, info, kill_wait, left):
    monkeypatch.setattr(scheduler, "job_info", info)
    monkeypatch.setattr(scheduler, "kill_wait", lambda: kill_wait)
    seconds = forced_exit.seconds_left("12", grace=120)
    assert seconds == (None if left is None else pytest.approx(left, abs=20))
