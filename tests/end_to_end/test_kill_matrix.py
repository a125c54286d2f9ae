"""Kills at random moments of a sweep and of a search.

The same command then completes the runs: no process is left, no step is lost or trained twice after
a save, and the runs are as if each had been trained alone.
"""

import contextlib
import json
import os
import random
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import split
from typing import Any, Literal

import pytest

from support import python
from support.processes import of_session
from support.runner import CHILD, ENVIRONMENT, launch, metrics_of, state_of
from support.waiting import wait_for

pytestmark = pytest.mark.skipif(
    not python.CAN_FORK, reason="children of a killed command end by a call of Linux"
)
FIXED = split(
    "model=mlp data=digits device=cpu trainer.max_steps=40 model.hidden_dim=16 model.dropout=0.1"
    " hooks.logging.interval=4 hooks.evaluation.interval=0 hooks.checkpointing.interval=10"
)
SEEDS = (1, 2, 3)
SEARCH = split(
    "hydra/sweeper=optuna optimizer.lr=tag(log,interval(1e-4,1e-1)) hpo.sampler=random"
    " hpo.pruner=none hpo.objective=train/loss hpo.n_trials=3"
)
LINES = 3 * 10
"""Kills come before one of so many lines is logged, while the runs start, train and save."""


@dataclass(frozen=True)
class Case:
    """A way to kill."""

    kind: Literal["sweep", "search"]
    victim: Literal["parent", "child", "group"]
    signum: signal.Signals
    slots: int
    ranks: int = 1

    def __str__(self) -> str:
        return f"{self.kind}-{self.victim}-{self.signum.name}-{self.slots}x{self.ranks}"

    @property
    def fixed(self) -> list[str]:
        if self.ranks == 1:
            return FIXED
        return [*FIXED, f"dispatch.nproc={self.ranks}", "strategy=ddp"]  # the quicker to start


@pytest.mark.parametrize(
    "case",
    [
        Case("sweep", "parent", signal.SIGKILL, 2),
        Case("sweep", "group", signal.SIGINT, 1, ranks=2),
        Case("search", "child", signal.SIGKILL, 2),
        Case("sweep", "parent", signal.SIGTERM, 4),
    ],
    ids=str,
)
def test_killed_runs_are_completed_as_if_each_had_been_trained_alone(tmp_path, case):
    expected, outputs = alone(case, tmp_path / "alone"), tmp_path / "killed"
    kill_one(case, outputs, random.Random(str(case)))
    assert complete(case, outputs) == expected, "other numbers"
    before = [len(run["attempts"]) for run in records(outputs)]
    assert complete(case, outputs) == expected
    assert [len(run["attempts"]) for run in records(outputs)] == before, "trained again"


def alone(case: Case, outputs: Path) -> dict[str, Any]:
    """The ends of the runs when each is trained by a command of its own, or in one slot."""
    if case.kind == "search":
        return complete(replace(case, slots=1), outputs)
    for seed in SEEDS:
        launch(outputs, *case.fixed, f"seed={seed}", code=0)
    return ends(outputs)


def complete(case: Case, outputs: Path) -> dict[str, Any]:
    """Repeat the command until it succeeds."""
    for _ in range(4):
        process = start(case, outputs)
        text, _ = process.communicate()
        if process.returncode == 0 and {run["state"] for run in records(outputs)} == {"completed"}:
            return ends(outputs)
    raise AssertionError(f"exit code {process.returncode}:\n{text}")


def kill_one(case: Case, outputs: Path, choose: random.Random) -> None:
    process, lines = start(case, outputs), choose.randrange(LINES)
    wait_for(lambda: count_lines(outputs) >= lines or process.poll() is not None)
    children = [pid for pid in of_session(process.pid) if pid != process.pid]
    pid = choose.choice(children or [process.pid]) if case.victim == "child" else process.pid
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if case.victim == "group" else os.kill)(pid, case.signum)
    text, _ = process.communicate()
    wait_for(lambda: not of_session(process.pid), f"the processes to end:\n{text}")
    if case.signum != signal.SIGKILL:
        for run in records(outputs):
            attempts = run["attempts"]
            stops = [attempt["end_step"] for attempt in attempts[:-1]]
            starts = [attempt["start_step"] for attempt in attempts[1:]]
            assert starts == stops, f"steps were lost or repeated: {attempts}\n{text}"
            assert run["state"] != "running", f"no end is recorded: {attempts}\n{text}"


def start(case: Case, outputs: Path) -> Any:
    outputs.mkdir(exist_ok=True)
    fixed = (f"paths.outputs={outputs}", *case.fixed)
    seeds = f"seed={','.join(map(str, SEEDS))}"
    words = {
        "sweep": ("-m", "launcher", "-m", *fixed, seeds, f"dispatch.parallel={case.slots}"),
        "search": ("-m", "launcher", "-m", *fixed, *SEARCH, f"hpo.parallel={case.slots}"),
    }[case.kind]
    return python.start(*words, env=ENVIRONMENT, cwd=outputs.parent, children=((CHILD, 3),))


def count_lines(outputs: Path) -> int:
    return sum(path.read_text().count("\n") for path in outputs.glob("*/*/metrics.jsonl"))


def records(outputs: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(outputs.glob("*/*/run.json"))]


def ends(outputs: Path) -> dict[str, Any]:
    """The metrics and the final checkpoint of each run."""
    folders = [path.parent for path in outputs.glob("*/*/run.json")]
    return {folder.name: (state_of(folder), metrics_of(folder)) for folder in folders}
