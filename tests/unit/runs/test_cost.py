"""`runs cost`: where the time of attempts goes, device hours, and money."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import ConfigError
from launcher.runs.spent import PARTS, Prices, Spent, spent
from launcher.runs.stored_run import StoredRun

BEGIN = 1_800_000_000


def time_of(seconds: float) -> str:
    return datetime.fromtimestamp(BEGIN + seconds, UTC).isoformat(timespec="seconds")


def attempt(begin: float, end: float, steps: tuple[int, int], **more: Any) -> dict[str, Any]:
    known = {
        "number": 1,
        "host": "h",
        "pid": 1,
        "start_step": steps[0],
        "end_step": steps[1],
        "world_size": 1,
    }
    known |= {
        "started": time_of(begin),
        "launched": time_of(begin),
        "ended": time_of(end),
        "outcome": "preempted",
    }
    return known | more


def run_of(*attempts: dict[str, Any], **record: Any) -> StoredRun:
    return StoredRun("nowhere", {"state": "completed", "attempts": [*attempts], **record})


def test_each_second_of_an_attempt_has_its_part() -> None:
    seconds = {"starting": 10.0, "evaluating": 5.0, "saving": 2.0}
    run = run_of(
        attempt(
            100,
            200,
            (0, 50),
            seconds=seconds,
            queued=time_of(40),
            world_size=4,
            device="NVIDIA H200",
        )
    )
    found = spent(run, BEGIN)
    assert found.seconds == {"queued": 60, "repeating": 0, "computing": 83, **seconds}
    assert found.devices == {"NVIDIA H200": 400}
    assert found.ratio == pytest.approx(83 / 160)


@pytest.mark.parametrize(
    ("spans", "repeated"),
    [
        ([(0, 10), (10, 20)], 0),
        ([(0, 10), (8, 20)], 20),
        ([(0, 10), (8, 8), (6, 20)], 40),
        ([(0, 10), (10, 20), (5, 30)], 150),
        ([(0, 10), (0, 20)], 100),
    ],
    ids=[
        "nothing is lost",
        "two steps",
        "an attempt without a step",
        "a rollback over two attempts",
        "all steps",
    ],
)
def test_steps_that_a_later_attempt_computes_again_are_lost(
    spans: list[tuple[int, int]], repeated: float
) -> None:
    """Each step took ten seconds."""
    attempts = []
    for index, (first, last) in enumerate(spans):
        begin = 1000 * index
        attempts.append(
            attempt(begin, begin + 10 * (last - first), (first, last), seconds={"starting": 0.0})
        )
    found = spent(run_of(*attempts), BEGIN)
    assert found.seconds["repeating"] == pytest.approx(repeated)
    assert found.seconds["computing"] == pytest.approx(10 * spans[-1][1])


def test_an_attempt_that_reached_no_step_was_starting() -> None:
    found = spent(run_of(attempt(0, 30, (5, 5), outcome="failed")), BEGIN)
    assert found.seconds["starting"] == 30


def test_an_open_attempt_lasts_until_now_or_the_last_write(make_run: Any) -> None:
    for id, state in (("aa", "running"), ("bb", "stale")):
        folder = make_run("gpt", id, state=state)
        run = StoredRun.read(folder.path)
        begun = datetime.fromisoformat(run.attempts[0]["started"]).timestamp()
        expected = (
            500.0 if state == "running" else max(0.0, folder.record_path.stat().st_mtime - begun)
        )
        assert sum(spent(run, begun + 500).seconds.values()) == pytest.approx(expected)


SPANS = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair)))


@given(
    st.lists(
        st.tuples(SPANS, st.integers(0, 100), st.integers(0, 100), st.integers(1, 8)), max_size=5
    )
)
def test_the_parts_add_up_to_the_time(given: list[Any]) -> None:
    attempts, total, devices = [], 0, 0
    for index, (steps, waited, took, ranks) in enumerate(given):
        begin = 1000 * index + 200
        more = {
            "queued": time_of(begin - waited),
            "world_size": ranks,
            "seconds": {"starting": took / 4},
        }
        attempts.append(attempt(begin, begin + took, steps, **more))
        total, devices = total + waited + took, devices + took * ranks
    found = spent(run_of(*attempts), BEGIN)
    assert sum(found.seconds.values()) == pytest.approx(total)
    assert all(value >= 0 for value in found.seconds.values())
    assert found.device_hours == pytest.approx(devices / 3600)


def test_sums_and_an_empty_one() -> None:
    assert Spent().ratio is None
    both = Spent({"computing": 1.0}, {"cpu": 2.0}) + Spent(
        {"computing": 2.0, "saving": 3.0}, {"gpu": 1.0}
    )
    assert (both.seconds, both.devices) == (
        {"computing": 3.0, "saving": 3.0},
        {"cpu": 2.0, "gpu": 1.0},
    )


# -------------------------------------------------------------------------------------------- money
def test_prices_go_by_the_longest_part_of_the_name(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("currency: EUR\nH100: 2\nH100 NVL: 2.5\ncpu: 0.1\n")
    prices = Prices.read(tmp_path / "p.yaml", "--prices")
    assert [
        prices.price(name) for name in ("NVIDIA H100 NVL", "NVIDIA H100 80GB", "CPU", "L4")
    ] == [2.5, 2, 0.1, None]
    assert prices.text(prices.of(Spent({}, {"NVIDIA H100 NVL": 7200, "cpu": 3600}))) == "5.10 EUR"
    assert prices.text(prices.of(Spent({}, {"L4": 1, "cpu": 3600}))) == "-"


@pytest.mark.parametrize(
    "text", ["- 1", "H100: much", "H100: -1", "H100: true", "H100: .inf", "a: [", ""]
)
def test_bad_prices_are_rejected(tmp_path: Path, text: str, runs: Any, make_run: Any) -> None:
    make_run("gpt", "aa")
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ConfigError, match="--prices="):
        Prices.read(tmp_path / "p.yaml", "--prices")
    code, _, err = runs("cost", "--prices", tmp_path / "p.yaml")
    assert (code, err.count("\n")) == (2, 1)


def test_the_verb_prints_runs_and_their_sum(tmp_path: Path, runs: Any, make_run: Any) -> None:
    (tmp_path / "p.yaml").write_text("cpu: 36\n")
    for id, hours in (("aa", 1), ("bb", 2)):
        folder = make_run("gpt", id, config={"paths": {"prices": str(tmp_path / "p.yaml")}})
        data = json.loads(folder.record_path.read_text())
        data["attempts"] = [
            attempt(0, hours * 3600, (0, 10), device="cpu", seconds={"starting": 60.0})
        ]
        folder.record_path.write_text(json.dumps(data))
    code, out, err = runs("cost")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[1][:3] == ["gpt", "aa", "completed"]
    assert lines[-1][0] == "total"
    assert lines[-1][-3:] == ["3", "99%", "108.00"]
    (group,) = json.loads(runs("cost", "--by", "name", "--json")[1])
    assert {part: group[part] for part in PARTS} == {
        "queued": 0, "starting": 120, "computing": 3 * 3600 - 120, "repeating": 0, "evaluating": 0,
        "saving": 0
    }  # fmt: skip
    assert (group["device_hours"], group["money"]) == (3, 108)
    assert (
        "1 device hours, 98 % effective (starting 1m, computing 59m), 36.00"
        in runs("show", "aa")[1]
    )
