"""A resumed run does what an uninterrupted run does, and not only ends as it: no evaluation, save
or logged line is repeated or left out."""

import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher import (
    BaseHook,
    CheckpointingHook,
    EarlyStoppingHook,
    EvaluationHook,
    JsonlHook,
    LoggingHook,
)
from launcher.process import signals
from support.toy import Toy

STEPS, EVALUATED, SAVED = 24, 5, 4


class Journal(BaseHook):
    """Notes what is done at which step, and stops the run by a signal within a step."""

    def __init__(self, stop: int | None):
        self.stop = stop
        self.done: list[tuple[int, str]] = []

    def on_evaluation_start(self, trainer: Any) -> None:
        self.done.append((trainer.step, "evaluates"))

    def on_log(self, trainer: Any, records: dict[str, Any], dry_run: bool = False) -> None:
        self.done.append((trainer.step, f"logs {' '.join(records)}"))

    def on_batch(self, trainer: Any, batch: object) -> None:
        if trainer.step == self.stop:
            os.kill(os.getpid(), signal.SIGTERM)


class Saves(logging.Handler):
    """The steps that are saved, as the log says."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.match(r"Step (\d+): checkpoint ", record.getMessage()):
            self.steps.append(int(found[1]))


def attempt(folder: Path, by: str, at: int | None) -> tuple[list[tuple[int, str]], list[int]]:
    """Train until `at`, where the run pauses or gets a signal; return what it did and saved."""
    journal, saves = Journal(at if by == "signal" else None), Saves()
    hooks = [
        LoggingHook(2),
        EvaluationHook(EVALUATED, loader=lambda: [torch.ones(4, 2)]),
        EarlyStoppingHook(patience=100),
        JsonlHook(),
        CheckpointingHook(SAVED, asynchronous=False),
        journal,
    ]
    trainer = Toy(hooks, STEPS, folder, pause_at=at if by == "pause" else None)
    level = trainer.logger.level
    trainer.logger.addHandler(saves)
    trainer.logger.setLevel(logging.INFO)
    before = signals.install()
    try:
        trainer.train()
    except signals.SignalExit:
        pass
    finally:
        signals.restore(before)
        trainer.logger.setLevel(level)
        trainer.logger.removeHandler(saves)
    return journal.done, saves.steps


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    return *attempt(folder, "pause", None), files(folder)


def files(folder: Path) -> dict[str, str]:
    """Each file of a run by name, with the lines that a run may repeat."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.name == "metrics.jsonl" else ""
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


# The steps: of nothing, a log, a save, an evaluation, both, and the step before and after.
@pytest.mark.parametrize("stops", [(1,), (2,), (4,), (5, 10), (19, 20, 21), (23,), range(1, 24)])
@pytest.mark.parametrize("by", ["pause", "signal"])
def test_a_resume_repeats_nothing_and_leaves_nothing_out(tmp_path, straight, by, stops):
    done: list[tuple[int, str]] = []
    saved: list[int] = []
    for stop in (*stops, None):
        of_attempt = attempt(tmp_path, by, stop)
        done += of_attempt[0]
        saved += of_attempt[1]
    repeated = interrupted(stops) if by == "signal" else []
    assert sorted(done) == sorted([*straight[0], *((step, "evaluates") for step in repeated)])
    assert sorted(saved) == sorted([*{*straight[1], *stops}, *repeated])
    assert files(tmp_path).keys() == straight[2].keys()


def interrupted(stops: Any) -> list[int]:
    """A signal within a step ends its evaluation, which the next attempt repeats and saves."""
    return [step for step in stops if step % EVALUATED == 0]
