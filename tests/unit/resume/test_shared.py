"""The look-up of a run with which a new one has steps in common."""

import json
import sys
from collections import Counter
from typing import Any

import pytest

from launcher.hooks.checkpointing import CheckpointingHook
from launcher.hooks.early_stopping import EarlyStoppingHook
from launcher.resume.common_steps import comparable
from launcher.resume.shared import Part, SharedStart, steps_to_await
from launcher.rundir.record_format import IDENTITY_VERSION

PROCESS = {"number": 1, "started": "", "host": "", "pid": 1}
READ: Counter[str] = Counter()
sys.addaudithook(lambda event, values: READ.update([str(values[0])] if event == "open" else []))


def identity(lr: float = 0.1, ratio: float = 0.2) -> dict[str, Any]:
    wsd = {"_target_": "launcher.optim.schedulers.wsd", "max_steps": 100, "decay_ratio": ratio}
    return {
        "trainer": {"max_steps": 100},
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": lr},
        "scheduler": wsd,
    }


def test_each_record_is_read_once(tmp_path):
    for number in range(200):
        own = identity(lr=number) if number % 50 else identity(ratio=0.4 + number / 1000)
        trained = {"settings": comparable(own, {}, 100)}
        attempt = {"start_step": 0, "end_step": 100, "trained": trained, **PROCESS}
        version = {"identity_version": IDENTITY_VERSION, "config": {}, "attempts": [attempt]}
        (folder := tmp_path / f"{number:05d}").mkdir()
        (folder / "run.json").write_text(json.dumps({"identity": own, **version}))
        for step in (20, 60, 80) if number == 0 else (90,):
            checkpoint = folder / "checkpoints" / f"step-{step:08d}"
            checkpoint.mkdir(parents=True)
            (checkpoint / "manifest.json").write_text("{}")
    READ.clear()
    found = SharedStart(comparable(identity(), {}, 100), {})._sources(tmp_path / "new")
    assert {(source.run.path.name, source.step) for source in found} == {
        ("00000", 20),
        ("00000", 60),
    }
    records = {name: count for name, count in READ.items() if name.endswith("run.json")}
    assert len(records) == 200 and {*records.values()} == {1}


@pytest.mark.parametrize(
    ("is_first", "start", "end", "expected"),
    [
        (True, 0, 20, (8, 12, 20)),
        (True, 0, 10, (8, 10, 10)),
        (True, 0, 0, (0, 0, 0)),
        (True, 0, None, (8, 12, 30)),  # It is at work.
        (False, 8, 20, (0, 12, 20)),
        (False, 12, 12, (0, 0, 0)),
        # A first attempt stands for the steps that its run shares, even if it trained no others.
        (True, 12, 20, (8, 12, 20)),
        (True, 12, 12, (8, 12, 12)),
    ],
)
def test_the_steps_that_an_attempt_has_trained(is_first, start, end, expected):
    attempt: Any = {"number": 1, "start_step": start, "end_step": end}
    part = Part(attempt, {}, 99, is_first)
    assert tuple(part.last_of(step) for step in (8, 12, 30)) == expected


LINES: list[dict[str, Any]] = [
    {"step": 0, "val/loss": 2.0},
    {"step": 5, "train/loss": 9.0},
    {"step": 10, "val/loss": 3.0},
    {"step": 20, "val/loss": "nan"},
]


def test_states_after_lines_leave_the_hooks_as_they_are():
    stopping, saving = EarlyStoppingHook(patience=9), CheckpointingHook(9, best_metric="val/loss")
    assert saving.best is not None
    before = stopping.best.state(), saving.best.state()
    both = {"metric": "val/loss", "mode": "min"}
    for _ in range(2):
        # The best checkpoint is not one of step 0.
        assert saving.state_after(LINES)["checkpointing"] == {
            "best": both | {"value": 3.0, "step": 10}
        }
        state = {"best": both | {"value": 2.0, "step": 0}, "misses": 2}
        assert stopping.state_after(LINES)["early_stopping"] == state
    assert (stopping.best.state(), saving.best.state()) == before and stopping.misses == 0


def test_a_step_is_awaited_until_each_of_its_runs_has_reached_it(tmp_path):
    leaves = {20: ["one"], 60: ["one", "two"]}
    for run, step, steps in [("one", 0, [20, 60]), ("one", 20, [60]), ("two", 60, [60])]:
        checkpoint = tmp_path / run / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}")
        assert steps_to_await(tmp_path, leaves) == steps
    (tmp_path / "one" / "checkpoints" / "step-00000020").rename(
        tmp_path / "one" / "checkpoints" / "step-00000080"
    )
    assert steps_to_await(tmp_path, leaves) == []
