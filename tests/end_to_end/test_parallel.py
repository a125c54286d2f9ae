"""`dispatch.parallel`: several runs of a sweep at a time on this machine."""

import json
import os
import signal
from pathlib import Path
from shlex import split
from typing import Any

from support import python, runner
from support.waiting import wait_for

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

FIXED = split(
    "model=mlp data=digits device=cpu data.num_workers=0 hooks.logging.interval=5"
    " hooks.evaluation.interval=0 hooks.checkpointing.interval=50"
)
PATIENCE = 480.0


def sweep(outputs: Path, *overrides: str) -> tuple[str, ...]:
    return ("-m", "launcher", "-m", f"paths.outputs={outputs}", *FIXED, *overrides)


def start(command: tuple[str, ...], folder: Path) -> Any:
    """Start a sweep, of which the process that forks its jobs is forked too."""
    children = (("launcher.dispatch.child_job", 1),)
    return python.start(*command, env=ENVIRONMENT, cwd=folder, children=children)


def run(command: tuple[str, ...], folder: Path) -> tuple[int, str]:
    process = start(command, folder)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode is not None
    return process.returncode, output


def records(outputs: Path) -> dict[int, dict[str, Any]]:
    found = (json.loads(path.read_text()) for path in outputs.glob("*/*/run.json"))
    return {run["config"]["seed"]: run for run in found}


def numbers(outputs: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of each run, without times."""
    folders = [file.parent for file in outputs.glob("*/*/metrics.jsonl")]
    return {folder.name: runner.metrics_of(folder) for folder in folders}


def test_an_interrupted_queue_saves_and_the_same_command_continues_bit_exactly(tmp_path):
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    words = ("trainer.max_steps=60", "seed=0,1,2")
    command = sweep(parts, *words, "dispatch.parallel=2")
    slowly = "+tracker.pace={_target_:support.pacer.Pacer,seconds:0.05}"
    process = start((*command, slowly), tmp_path)
    wait_for(lambda: sum(run["step"] > 0 for run in records(parts).values()) >= 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "the same command resumes them." in output, output
    assert {run["state"] for run in records(parts).values()} <= {"preempted", "completed"}
    code, output = run(command, tmp_path)
    assert code == 0, output
    assert [records(parts)[seed]["state"] for seed in range(3)] == ["completed"] * 3
    code, output = run(sweep(whole, *words), tmp_path)
    assert code == 0, output
    assert numbers(parts) == numbers(whole)


def test_failed_job_of_a_queue_does_not_stop_the_others(tmp_path):
    words = ("trainer.max_steps=60", "optimizer=sgd", "optimizer.lr=1e30,0.1,0.2")
    code, output = run(sweep(tmp_path / "outputs", *words, "dispatch.parallel=2"), tmp_path)
    assert code == 1, output
    assert "failed: NonFiniteError: The gradient was not finite" in output
    assert "1 of 3 jobs failed:" in output
    found = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/*/*/run.json")]
    assert sorted(run["state"] for run in found) == ["completed", "completed", "failed"]


PRINTS = """
import os

from torch import nn

print("the module is imported", flush=True)


class Net(nn.Linear):
    def __init__(self, end: str = "trains"):
        super().__init__(64, 10)
        print("the model is built in job", os.environ["NUMBER"], flush=True)
        if end != "trains":
            os._exit(int(end))

    def forward(self, batch):
        return nn.functional.cross_entropy(super().forward(batch[0]), batch[1]), {}
"""


def test_what_a_job_prints_is_in_its_run_or_on_the_terminal(tmp_path):
    (tmp_path / "printing_package.py").write_text(PRINTS)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    option = "_target_: printing_package.Net\nend: trains\n"
    (tmp_path / "conf" / "model" / "prints.yaml").write_text(option)
    ends = "model.end=trains,'7','0'"
    words = ("model=prints", ends, "trainer.max_steps=2", "dispatch.parallel=2")
    number = "+hydra.job.env_set.NUMBER=${hydra:job.num}"
    code, output = run(sweep(tmp_path / "outputs", *words, number), tmp_path)
    assert code == 1, output
    (log,) = tmp_path.glob("outputs/*/*/logs/output.log")
    printed = ["the module is imported", "the model is built in job"]
    assert {printed[0], f"{printed[1]} 0"} <= {*log.read_text().splitlines()}
    # The runs of the other jobs have no folder yet, so the terminal has it.
    assert {printed[0], f"{printed[1]} 1"} <= {*output.splitlines()}
    # A process that ends with 0 has not trained for that.
    assert "2 of 3 jobs failed:" in output
    assert "ended with exit code 0 in the middle of the run (os._exit?)" in output
