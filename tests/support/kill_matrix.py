"""Kills of a sweep, a search, and a SLURM job of several runs, and what they may not change.

`kill_one` trains three runs and kills at a random moment. The same command then completes them: no
process is left, no step is lost or trained twice after a save, and the runs are as if each had
been trained alone.
"""

import hashlib
import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.rundir.folder import RunFolder
from launcher.slurm.shared_job import write_runs
from support import python
from support.processes import running, wait_for
from support.runner import CHILD, ENVIRONMENT, launch, metrics_of

FIXED = (
    "model=mlp",
    "data=digits",
    "device=cpu",
    "trainer.max_steps=40",
    "data.num_workers=0",
    "model.dropout=0.1",
    "hooks.logging.interval=4",
    "hooks.evaluation.interval=0",
    "hooks.checkpointing.interval=10",
)
SEEDS = (1, 2, 3)
SEARCH = (
    "hydra/sweeper=optuna",
    "optimizer.lr=tag(log,interval(1e-4,1e-1))",
    "hpo.sampler=random",
    "hpo.pruner=none",
    "hpo.objective=train/loss",
    "hpo.n_trials=3",
)
FILES = ("shard-00000.safetensors", "rank-00000.safetensors", "state.json")
PATIENCE = 500.0
GRACEFUL = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Case:
    """A way to kill."""

    kind: Literal["sweep", "search", "shared"]
    victim: Literal["parent", "child", "group"]
    signum: signal.Signals
    slots: int
    ranks: int = 1

    def __str__(self) -> str:
        return f"{self.kind}-{self.victim}-{self.signum.name}-{self.slots}x{self.ranks}"


def start(case: Case, outputs: Path) -> Any:
    outputs.mkdir(exist_ok=True)
    children = ((CHILD, 6), (CHILD, case.ranks)) if case.slots > 1 or case.kind != "sweep" else ()
    if case.ranks > 1 and not children:
        children = ((CHILD, 6),)
    return python.start(
        *words(case, outputs), env=ENVIRONMENT, cwd=outputs.parent, children=children
    )


def words(case: Case, outputs: Path) -> tuple[str, ...]:
    fixed = (f"paths.outputs={outputs}", *FIXED)
    if case.kind == "shared":
        return ("-m", CHILD, "task", str(shared_job(case, outputs, fixed)))
    ranks = f"dispatch.nproc={case.ranks}"
    if case.kind == "search":
        return ("-m", "launcher", "-m", *fixed, *SEARCH, ranks, f"hpo.parallel={case.slots}")
    seeds = f"seed={','.join(map(str, SEEDS))}"
    return ("-m", "launcher", "-m", *fixed, seeds, ranks, f"dispatch.parallel={case.slots}")


def shared_job(case: Case, outputs: Path, fixed: tuple[str, ...]) -> Path:
    """Freeze the runs that have no job that would start them, as a submission or retry does."""
    job, frozen = outputs / ".slurm" / "job", outputs / "frozen"
    dispatch = [
        "dispatch=slurm",
        f"dispatch.runs_per_job={case.slots}",
        f"dispatch.tasks_per_node={case.ranks}",
    ]
    states = {} if not job.exists() else {run["config"]["seed"]: run for run in records(outputs)}
    for seed in SEEDS:
        if seed not in states or states[seed]["state"] == "failed":
            arguments = (str(frozen), *fixed, *dispatch, f"seed={seed}")
            python.run("-m", "launcher.dispatch.freeze", *arguments, env=ENVIRONMENT, check=True)
    if not job.exists():
        write_runs(job, [RunFolder(path.parent) for path in sorted(outputs.glob("*/*/run.json"))])
    return job


def records(outputs: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(outputs.glob("*/*/run.json"))]


def digests(outputs: Path) -> dict[str, str]:
    """Hashes of the metrics and the final checkpoint of each run."""
    found = {}
    for path in sorted(outputs.glob("*/*/run.json")):
        latest = path.parent / "checkpoints" / "latest"
        parts = [(latest / name).read_bytes() for name in FILES]
        parts.append(json.dumps(metrics_of(path.parent)).encode())
        found[path.parent.name] = hashlib.sha256(b"".join(parts)).hexdigest()
    return found


def complete(case: Case, outputs: Path) -> dict[str, str]:
    """Repeat the command until it succeeds; return the digests."""
    for _ in range(4):
        process = start(case, outputs)
        text, _ = process.communicate(timeout=PATIENCE)
        if process.returncode == 0 and {run["state"] for run in records(outputs)} == {"completed"}:
            return digests(outputs)
    raise AssertionError(f"{case}: exit code {process.returncode}:\n{text}")


def alone(case: Case, outputs: Path) -> dict[str, str]:
    """The digests of the runs when each is trained by a command of its own, or in one slot."""
    if case.kind == "search":
        return complete(Case("search", "parent", signal.SIGKILL, 1, case.ranks), outputs)
    for seed in SEEDS:
        done = launch(outputs, *FIXED, f"seed={seed}", f"dispatch.nproc={case.ranks}")
        assert done.returncode == 0, done.output
    return digests(outputs)


def kill_one(case: Case, outputs: Path, seconds: float, choose: random.Random) -> bool:
    """Kill after some seconds; return whether there was something to kill."""
    process = start(case, outputs)
    time.sleep(choose.uniform(0, seconds))
    session = process.pid
    children = [pid for pid, stat in running() if stat[3] == str(session) and pid != session]
    if case.victim == "child" and not children:
        has_killed = False
    else:
        pid = choose.choice(children) if case.victim == "child" else session
        has_killed = process.poll() is None
        try:
            (os.killpg if case.victim == "group" else os.kill)(pid, case.signum)
        except ProcessLookupError:
            has_killed = False
    text, _ = process.communicate(timeout=PATIENCE)
    assert wait_for(lambda: not left(session), 120), f"{case}: processes are left:\n{text}"
    if case.signum in GRACEFUL and case.victim != "child":
        check_steps(case, outputs, text)
    return has_killed


def left(session: int) -> list[int]:
    return [pid for pid, stat in running() if stat[3] == str(session) and stat[0] != "Z"]


def check_steps(case: Case, outputs: Path, text: str) -> None:
    """Check that each attempt begins with the step at which the one before it ended."""
    for run in records(outputs):
        attempts = run["attempts"]
        ends = [attempt["end_step"] for attempt in attempts[:-1]]
        begins = [attempt["start_step"] for attempt in attempts[1:]]
        assert begins == ends, f"{case}: steps were lost or repeated: {attempts}\n{text}"
        assert run["state"] != "running", f"{case}: no end is recorded: {attempts}\n{text}"


def check(
    case: Case,
    outputs: Path,
    expected: dict[str, str],
    seconds: float,
    choose: random.Random,
    times: int = 1,
) -> int:
    """Kill, complete the runs and compare them; return the number of kills."""
    kills = sum(kill_one(case, outputs, seconds, choose) for _ in range(times))
    assert complete(case, outputs) == expected, f"{case}: other numbers"
    before = [len(run["attempts"]) for run in records(outputs)]
    assert complete(case, outputs) == expected
    assert [len(run["attempts"]) for run in records(outputs)] == before, f"{case}: trained again"
    return kills
