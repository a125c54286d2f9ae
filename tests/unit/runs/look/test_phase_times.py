"""The time of attempts by phase, and device hours."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.runs.look.phase_times import (
    DEVICES,
    PHASES,
    Times,
    describe_starts,
    describe_time,
    time_of_run,
    total_time,
)
from launcher.runs.stored_run import StoredRun

BEGIN = 1_800_000_000


def time_of(seconds: float) -> str:
    return datetime.fromtimestamp(BEGIN + seconds, UTC).isoformat(timespec="seconds")


def attempt(begin: float, end: float, steps: tuple[int, int], **more: Any) -> dict[str, Any]:
    return {
        "number": 1, "host": "h", "pid": 1, "world_size": 1, "outcome": "preempted",
        "start_step": steps[0], "end_step": steps[1],
        "started": time_of(begin), "launched": time_of(begin), "ended": time_of(end),
        **more,
    }  # fmt: skip


def spent_by(*attempts: dict[str, Any]) -> Times:
    return time_of_run(StoredRun("nowhere", {"state": "completed", "attempts": [*attempts]}), BEGIN)


def test_each_second_of_an_attempt_has_its_part():
    seconds = {"starting": 10.0, "evaluating": 5.0, "saving": 2.0}
    found = spent_by(attempt(100, 200, (0, 50), seconds=seconds, queued=time_of(40), world_size=4))
    expected = {"queued": 60, "repeating": 0, "computing": 83, DEVICES: 400, **seconds}
    assert found == expected and "52 % effective" in describe_time(found)
    assert spent_by(attempt(0, 30, (5, 5), outcome="failed"))["starting"] == 30
    assert describe_time(total_time([])) == "0 device hours"


def test_the_parts_of_starts_are_summed():
    first = {"imports": 2.0, "build": 0.25, "checkpoint": 0.0, "starting": 3.0}
    second = first | {"python": 0.5, "first_step": 1.5}
    attempts = [attempt(0, 30, (0, 5), seconds=seconds) for seconds in (first, second, None)]
    assert describe_starts(attempts) == "python 0.5s, imports 4s, build 0.5s, first step 1.5s"
    assert describe_starts([]) == ""


@pytest.mark.parametrize(
    ("spans", "repeated"),
    [
        pytest.param([(0, 10), (8, 8), (6, 20)], 40, id="an attempt without a step"),
        pytest.param([(0, 10), (10, 20), (5, 30)], 150, id="a rollback over two attempts"),
        pytest.param([(0, 10), (0, 20)], 100, id="all steps"),
    ],
)
def test_steps_that_a_later_attempt_computes_again_are_lost(spans, repeated):
    """Each step took ten seconds."""
    attempts = []
    for index, (first, last) in enumerate(spans):
        end = 1000 * index + 10 * (last - first)
        attempts.append(attempt(1000 * index, end, (first, last), seconds={"starting": 0.0}))
    found = spent_by(*attempts)
    assert found["repeating"] == pytest.approx(repeated)
    assert found["computing"] == pytest.approx(10 * spans[-1][1])


@pytest.mark.parametrize("state", ["running", "stale"])
def test_an_open_attempt_lasts_until_now_or_the_last_write(make_run, state):
    folder = make_run("gpt", "aa", state=state)
    run = StoredRun.read(folder.path)
    begun = datetime.fromisoformat(run.attempts[0]["started"]).timestamp()
    written = max(0.0, folder.record_path.stat().st_mtime - begun)
    total = time_of_run(run, begun + 500)[DEVICES]
    assert total == pytest.approx(500.0 if state == "running" else written)


SPANS = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair)))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(SPANS, st.integers(0, 100), st.integers(0, 100), st.integers(1, 8)), max_size=5
    )
)
def test_the_parts_add_up_to_the_time(given):
    attempts, total, devices = [], 0, 0
    for index, (steps, waited, took, ranks) in enumerate(given):
        begin = 1000 * index + 200
        more = {"queued": time_of(begin - waited), "seconds": {"starting": took / 4}}
        attempts.append(attempt(begin, begin + took, steps, world_size=ranks, **more))
        total, devices = total + waited + took, devices + took * ranks
    found = spent_by(*attempts)
    assert sum(found[name] for name in PHASES) == pytest.approx(total)
    assert all(value >= 0 for value in found.values()) and found[DEVICES] == devices
