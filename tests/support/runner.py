"""The launcher as a user runs it: a process, its signals, its files."""

import atexit
import hashlib
import json
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.checkpoint.store import CheckpointStore
from support import proxy, python
from support.paths import PYTHONPATH

TEMPORARY = tempfile.mkdtemp(prefix="tests-")
"""The folder for temporary files of the processes under test: those that are killed leave some. It
is not a folder of pytest's, since the path of a socket in it has at most 107 characters."""
atexit.register(shutil.rmtree, TEMPORARY, ignore_errors=True)

ENVIRONMENT = {
    **os.environ,
    "TMPDIR": TEMPORARY,
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": PYTHONPATH,
}
CHILD, NPROC = "launcher.dispatch.child_job", "dispatch.nproc="
TIMES = ("time", "attempt", "train/step_time", "train/data_time")
"""The fields of metrics in which two equal runs may differ."""


@dataclass
class Outcome:
    returncode: int
    output: str


def start(
    *words: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    real: bool = False,
) -> Any:
    """Start `python <words>`. The process is forked too that forks its ranks, or jobs of a sweep,
    and with DeepSpeed the ranks are."""
    count = next(
        (int(word[len(NPROC) :]) for word in reversed(words) if re.fullmatch(rf"{NPROC}\d+", word)),
        1,
    )
    if "strategy=deepspeed" not in words:
        count = 1
    children: proxy.Children = ((CHILD, count),)
    if {"replay", "check"} & {*words}:
        children = ((CHILD, 4), (CHILD, 2))  # as many as the run had, or segments and an evaluation
    elif "job=resume_check" in words:
        children = ((CHILD, 4), *children)
    env = ENVIRONMENT if env is None else env
    return python.start(
        *words, env=env, cwd=cwd, preloaded=python.preloaded(words), children=children, real=real
    )


def launch(
    outputs: Path,
    *overrides: str,
    code: int | None = None,
    at: str | None = None,
    signum: int = signal.SIGTERM,
    module: str = "launcher",
    timeout: float = 400,
    real: bool = False,
) -> Outcome:
    """Run to the end.

    Args:
        code: the exit code that it should have. None: any.
        at: the whole group is sent a signal once a line with this has been printed.
    """
    words = ("-m", module, f"paths.outputs={outputs}", *overrides)
    process = start(*words, real=real)
    assert process.stdout is not None
    watchdog = threading.Timer(timeout, lambda: os.killpg(process.pid, signal.SIGKILL))
    watchdog.start()
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if at is not None and at in line:
                os.killpg(process.pid, signum)
                at = None
        process.wait()
    finally:
        watchdog.cancel()
        process.stdout.close()
    output = "".join(lines)
    assert code in (None, process.returncode), f"exit code {process.returncode}:\n{output}"
    return Outcome(process.wait(), output)


def stop_at(
    step: int,
    moment: str = "after_step",
    signum: str = "SIGTERM",
    group: bool = True,
    rank: int | str = "null",
) -> list[str]:
    """Overrides with which the run sends itself a signal at that moment of that step (see
    `interrupter`)."""
    how = f"step:{step},moment:{moment},signum:{signum},group:{group},rank:{rank}"
    return [f"+tracker.interrupter={{_target_:support.interrupter.Interrupter,{how}}}"]


def run_folder(outputs: Path) -> Path:
    """The folder of the only run."""
    (record,) = outputs.glob("*/*/run.json")
    return record.parent


def record(outputs: Path) -> dict[str, Any]:
    return json.loads((run_folder(outputs) / "run.json").read_text())


def metrics(outputs: Path) -> list[dict[str, Any]]:
    """Metrics of the only run."""
    return metrics_of(run_folder(outputs))


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl without the times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if key not in TIMES}
        for line in lines
    ]


def final_state(outputs: Path) -> dict[str, str]:
    """`state_of` the only run."""
    return state_of(run_folder(outputs))


def state_of(folder: Path) -> dict[str, str]:
    """Hashes of a run's final weights, moments, scaler, LR, counters, random state and data
    position."""
    latest = folder / "checkpoints" / "latest"
    names = ["shard-00000.safetensors", "rank-00000.safetensors", "state.json"]
    return {name: hashlib.sha256((latest / name).read_bytes()).hexdigest() for name in names}


def steps(outputs: Path) -> list[int]:
    """The steps of the run's checkpoints."""
    return CheckpointStore(run_folder(outputs) / "checkpoints").steps()
