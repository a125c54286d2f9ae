"""The durations of an attempt's phases, and the beginning of the work on it."""

import subprocess
import sys
import time

import pytest

from launcher.process import times
from launcher.process.times import PhaseTimes, launch_time


def test_an_inner_context_of_the_same_name_adds_nothing(monkeypatch):
    clock = iter([0.0, 10.0, 11.0, 20.0, 25.0, 30.0])
    monkeypatch.setattr(times.time, "perf_counter", lambda: next(clock))
    measured = PhaseTimes()
    with measured.measure("saving"), measured.measure("saving"):
        pass
    with measured.measure("saving"), measured.measure("evaluating"):
        pass
    assert measured.seconds == {"saving": 10.0 + 19.0, "evaluating": 5.0}


def test_a_phase_that_fails_is_measured_and_may_begin_again():
    measured = PhaseTimes()
    for _ in range(2):
        with pytest.raises(KeyError), measured.measure("saving"):
            raise KeyError
    assert measured.seconds["saving"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_first_run_of_a_process_began_with_it():
    code = "import time; before = time.time(); time.sleep(0.3)\n"
    code += "from launcher.process.times import launch_time\n"
    code += "print(launch_time() <= before, launch_time() > before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_a_forked_process_began_when_it_was_requested(monkeypatch):
    """Another process has imported for it."""
    monkeypatch.setattr(times, "_first", True)
    monkeypatch.setattr(times, "_requested", None)
    times.note_request(1_700_000_000.5)
    assert launch_time({}) == 1_700_000_000.5 < launch_time({})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_python_starts_before_the_first_line_of_a_command(monkeypatch):
    monkeypatch.setattr(times, "_age", lambda: 10.0)
    times.note_first_line(time.time() - 9.5)
    assert times.python_time() == pytest.approx(0.5, abs=0.1)
    assert times.python_time() == 0.0, "a later run in this process"
    times.note_first_line(time.time() - 10.5)
    assert times.python_time() == 0.0, "the system's clock was set"


@pytest.mark.parametrize(
    ("environment", "is_of_the_job"),
    [
        ({"SLURM_JOB_START_TIME": "1700000000"}, True),
        ({"SLURM_JOB_START_TIME": ""}, False),
        ({"SLURM_JOB_START_TIME": "Unknown"}, False),
        ({}, False),
    ],
)
def test_a_job_began_when_slurm_started_it(environment, is_of_the_job, monkeypatch):
    monkeypatch.setattr(times, "_first", True)
    began = launch_time(environment)
    assert (began == 1_700_000_000) == is_of_the_job
    assert began <= time.time()
