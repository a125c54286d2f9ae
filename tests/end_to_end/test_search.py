"""A hyperparameter search as a user runs it: processes, a kill, pauses, and the files that it
leaves."""

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from shlex import split
from typing import Any

import pytest
import yaml

from launcher.runs.stored_study import StoredStudy
from launcher.runs.trials import Trial
from support import python
from support.runner import ENVIRONMENT, final_state, launch, metrics
from support.waiting import wait_for

FIXED = split(
    "model=mlp data=digits device=cpu trainer.max_steps=36 data.batch_size=60 data.num_workers=0"
    " model.dropout=0.1 hooks.logging.interval=4 hooks.evaluation.interval=4"
    " hooks.evaluation.max_samples=64 hooks.checkpointing.interval=5"
)
SEARCH = split(
    "hydra/sweeper=optuna optimizer.lr=tag(log,interval(1e-4,1e-1)) hpo.pruner=asha hpo.n_trials=4"
)
CHILD = "launcher.dispatch.child_job"
ON_LINUX = pytest.mark.skipif(not python.CAN_FORK, reason="children end by a call of Linux")


def start(outputs: Path, *overrides: str, **keys: Any) -> Any:
    words = ("-m", "launcher", "-m", f"paths.outputs={outputs}", *FIXED, *SEARCH, *overrides)
    children = ((CHILD, 1),)
    return python.start(*words, env=ENVIRONMENT, cwd=outputs.parent, children=children, **keys)


def asked(outputs: Path) -> list[Trial]:
    (study,) = outputs.glob("studies/*")
    return StoredStudy.read(study).trials


def attempts(outputs: Path) -> dict[str, list[tuple[int, int | None]]]:
    """The steps at which each attempt of each run started and ended."""
    records = [json.loads(path.read_text()) for path in outputs.glob("*/*/run.json")]
    return {
        run["id"]: [(each["start_step"], each["end_step"]) for each in run["attempts"]]
        for run in records
    }


def has_trained(outputs: Path) -> bool:
    """Return whether a step has been logged. An evaluation before the first is logged too."""
    return any("train/loss" in path.read_text() for path in outputs.glob("*/*/metrics.jsonl"))


def has_open_files(folder: Path) -> bool:
    """Return whether a process has a file of the folder open (Linux)."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if Path(os.readlink(link)).is_relative_to(folder):
                return True
    return False


@ON_LINUX
def test_a_search_that_is_killed_continues_as_a_copy_and_its_best_run_is_as_one_that_never_paused(
    tmp_path,
):
    outputs = tmp_path / "outputs"
    killed = start(outputs, "hpo.parallel=2")
    for line in killed.stdout:
        if line.startswith("trial 1: paused"):
            break
    os.kill(killed.pid, signal.SIGKILL)
    killed.stdout.close()
    killed.wait()
    # A trial that has just started has its log, and no run yet.
    wait_for(lambda: not has_open_files(outputs), "the trials of a killed search to end")

    original, outputs = outputs, Path(shutil.copytree(outputs, tmp_path / "copied"))
    before = {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    again = start(outputs, "hpo.parallel=2")
    text, _ = again.communicate(timeout=500)
    assert again.returncode == 0, text
    assert "trials so far" in text
    assert before == {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    trials = asked(outputs)
    assert [trial.number for trial in trials] == [0, 1, 2, 3], text
    assert len({trial.run for trial in trials}) == 4
    runs = attempts(outputs)
    assert len(runs) == 4
    for parts in runs.values():
        # No step was lost or repeated.
        assert [begin for begin, _ in parts[1:]] == [end for _, end in parts[:-1]]
    ends = {parts[-1][1] for parts in runs.values()}
    assert 36 in ends and ends <= {4, 12, 36}

    (study,) = outputs.glob("studies/*")
    best = yaml.safe_load((study / "optimization_results.yaml").read_text())
    (winner,) = [trial for trial in trials if trial.params == best["best_params"]]
    assert attempts(outputs)[str(winner.run).partition("/")[2]][-1][1] == 36
    straight = tmp_path / "straight"
    done = launch(straight, *FIXED, *(f"{key}={value}" for key, value in winner.params.items()))
    assert done.returncode == 0, done.output
    (folder,) = (path.parent for path in straight.glob("*/*/run.json"))
    assert folder.name == str(winner.run).partition("/")[2]
    only = tmp_path / "only"
    (only / "mlp-digits").mkdir(parents=True)
    (outputs / str(winner.run)).rename(only / str(winner.run))
    assert metrics(only) == metrics(straight)
    assert final_state(only) == final_state(straight)


@pytest.mark.parametrize(("act", "code"), [("terminate", 143), ("close", 128 + signal.SIGPIPE)])
def test_a_signal_and_a_closed_pipe_save_the_trials_of_a_search(tmp_path, act, code):
    """`| head` closes the pipe: the next line cannot be printed, here the one of the first
    pause."""
    outputs = tmp_path / "outputs"
    slow = "+tracker.pace={_target_:support.pacer.Pacer,seconds:0.2}"
    pauses = ("hpo.parallel=2", "hpo.min_steps=4") if act == "close" else ("hpo.pruner=none",)
    with open(tmp_path / "errors", "w") as errors:
        stopped = start(outputs, *pauses, "trainer.max_steps=9999", slow, stderr=errors)
    for line in stopped.stdout:
        if line.startswith(f"trial {0 if act == 'terminate' else 1}: starts"):
            break
    if act == "terminate":
        wait_for(lambda: has_trained(outputs))
        os.kill(stopped.pid, signal.SIGTERM)
    stopped.stdout.close()
    assert stopped.wait() == code
    assert "Traceback" not in (tmp_path / "errors").read_text()
    records = [json.loads(path.read_text()) for path in outputs.glob("*/*/run.json")]
    assert records and {record["state"] for record in records} <= {"preempted", "paused"}
    assert any(record["step"] for record in records)
    # One that was stopped before its first step has nothing to save.
    assert all((record["checkpoint"] or 0) == record["step"] for record in records)
