"""Trials that train at once: they write the files of a run, with values that a function gives."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from optuna.distributions import FloatDistribution

from launcher.config.options import own_option
from launcher.config.run_config import RunConfig
from launcher.dispatch.jobs import Job
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder, step_name
from launcher.rundir.record import RunRecord
from launcher.search.local_runner import Runner
from launcher.search.rungs import rungs_of
from launcher.search.search import Search
from launcher.search.study_settings import Settings

SPACE = {"x": FloatDistribution(0.0, 1.0)}
MAX_STEPS, EVERY = 90, 10
EVALUATION = {**own_option("hooks", "evaluation")["evaluation"], "interval": EVERY}
CONFIG = {"trainer": {"max_steps": MAX_STEPS}, "hooks": {"evaluation": EVALUATION}}


def loss(x: float, step: int) -> float:
    """The smaller the nearer x is to 0.3, and the longer it is trained."""
    return abs(x - 0.3) + 1 / step


class Killed(BaseException):
    """The search ends without another word."""


class ToyRunner(Runner):
    """
    Args:
        value: of `val/loss`, by x and step.
        breaks: the exit code with which a trial ends half-way, by its number and its start; 0: it
            does not.
        reason: the error of a trial that breaks.
        saves: whether a trial leaves a checkpoint at its end.
    """

    def __init__(
        self,
        outputs: Path,
        value: Callable[[float, int], Any] = loss,
        breaks: Callable[[int, int], int] = lambda number, start: 0,
        reason: str = "a toy breaks",
        saves: bool = False,
    ):
        self.outputs, self.value, self.breaks = outputs, value, breaks
        self.reason, self.saves = reason, saves
        self.starts: list[int] = []
        self.codes: dict[int, int] = {}
        self.poll = 0.0

    def start(self, number: int, config: RunConfig) -> None:
        self.starts.append(number)
        folder = RunFolder(self.outputs / config.name).create()
        record = RunRecord(folder)
        end = min(config.plain["trainer"]["pause_at"] or MAX_STEPS, MAX_STEPS)
        code = self.breaks(number, self.starts.count(number))
        if code:
            end = (record.step + end) // 2
        record.begin_attempt(
            start_step=record.step, max_steps=MAX_STEPS, world_size=1, strategy="none"
        )
        with open(folder.metrics_path, "a") as file:
            for step in range(record.step + 1, end + 1):
                if step % EVERY == 0:
                    line = {"step": step, "val/loss": self.value(config.plain["x"], step)}
                    file.write(json.dumps(line) + "\n")
        outcome: Any = "completed" if end == MAX_STEPS else "paused"
        if code:
            outcome = "preempted" if code == 143 else "failed"
        reason = self.reason if code else None
        if self.saves:
            checkpoint = folder.checkpoints / step_name(end)
            checkpoint.mkdir(parents=True, exist_ok=True)
            (checkpoint / "manifest.json").touch()
        record.end_attempt(outcome, end_step=end, exit_code=code, reason=reason)
        self.codes[number] = code

    def running(self) -> set[int]:
        return set(self.codes)

    def reap(self) -> dict[int, int]:
        codes, self.codes = self.codes, {}
        return codes

    def stop(self, numbers: Sequence[int]) -> None:
        pass

    def why(self, number: int, code: int) -> str:
        return f"exit code {code}"

    def close(self) -> None:
        pass


def composed(overrides: list[str], number: int) -> Job:
    """The job of a trial; an x above 0.9 is rejected."""
    values = dict(override.split("=") for override in overrides)
    x = float(values["x"])
    if x > 0.9:
        raise ConfigError(f"x={x}: is too large.")
    identity = hashlib.sha256(str(x).encode()).hexdigest()[:8]
    run = {"name": "toy", "id": identity, "dir": identity}
    plain = {"run": run, "trainer": {"pause_at": None}, "x": x}
    return Job(RunConfig(plain, plain), number, overrides)


def search(
    folder: Path,
    runner: Any,
    space: Any = SPACE,
    compose: Any = composed,
    say: Any = None,
    **settings: Any,
) -> Search:
    keys = Settings(objective="val/loss", direction="minimize", **settings)
    study = folder / "studies" / (keys.name or "toy")
    study.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    parts = (study, folder, keys, space, [], compose, runner, rungs_of(keys, CONFIG))
    made = Search(*parts, say or lines.append)
    made.load()
    made.lines = lines  # type: ignore[attr-defined]
    return made
