"""Incidents of a job, and the required ends of its run. The incidents happen in parallel, each on
its own nodes, since SLURM mostly waits. Only a few runs start at once, since that takes CPU
time."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from support.lab import INTERVAL, Lab, run_folders, steps_done, wait_for, wait_for_step
from support.paths import TESTS
from support.runner import record

AT_ONCE = 6
"""At most this many incidents at the same time: each run starts two or three times, and a start
takes CPU time."""
STARTING = BoundedSemaphore(3)
"""At most this many runs start at the same time."""


@dataclass
class Incident:
    name: str
    act: Callable[[Lab, str, str, Path], None]
    """Called with the cluster, the job, its first node and the outputs once the run has done some
    steps."""
    partition: str = "main"
    user_signal: bool = True
    """The cluster is the one that sends a job's own signal at a preemption."""
    nodes: int = 1
    """Number of nodes that the run has for itself."""
    overrides: list[str] = field(default_factory=list)
    ranks: int = 1
    outcome: str = "preempted"
    """Outcome of the first attempt in run.json; `reason` is a part of the reason there."""
    reason: str = "requeued"
    final: str = "COMPLETED"
    """SLURM's last state of the job."""
    lossless: bool = True
    """A signal came, so no step may be lost; otherwise at most one interval."""
    at_once: bool = False
    """It happens when the job starts, before its run does."""
    starts: int = 2
    """Number of SLURM's starts of the job."""


def preempt(lab: Lab, job: str, node: str, outputs: Path) -> None:
    lab.preempt(node)


def cancel(lab: Lab, job: str, node: str, outputs: Path) -> None:
    lab.run("scancel", job)


def wait(lab: Lab, job: str, node: str, outputs: Path) -> None:
    """Wait for the time limit."""


def cut_power(lab: Lab, job: str, node: str, outputs: Path) -> None:
    """The machine crashes, and returns once SLURM has noticed."""
    lab.node("crash", node)
    wait_for(
        lambda: lab.info(job)["JobState"] in ("PENDING", "NODE_FAIL"), "SLURM to miss the node"
    )
    lab.node("start", node)


def lose_daemon(lab: Lab, job: str, node: str, outputs: Path) -> None:
    """Only SLURM loses the node: its processes continue while the job restarts elsewhere."""
    lab.node("slurmd-kill", node)


def drain(lab: Lab, job: str, node: str, outputs: Path) -> None:
    lab.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    lab.preempt(node)  # waits forever, and must not matter


def kill_task(lab: Lab, job: str, node: str, outputs: Path) -> None:
    """A bare SIGTERM that SLURM does not know about."""
    lab.run("scancel", "--signal=TERM", f"{job}.0")


def kill_batch_script(lab: Lab, job: str, node: str, outputs: Path) -> None:
    """It is killed alone, as by the kernel if memory is short."""
    name = f"job{int(job):05d}/slurm_script"
    pids = lab.run("pgrep", "-f", f"{lab.state}.*{name}").split()
    os.kill(int(pids[0]), signal.SIGKILL)


def warn_batch_script(lab: Lab, job: str, node: str, outputs: Path) -> None:
    for name in ("USR1", "USR2"):
        lab.run("scancel", "--batch", f"--signal={name}", job)


def set_down(lab: Lab, job: str, node: str, outputs: Path) -> None:
    lab.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    wait_for(lambda: lab.info(job)["JobState"] == "NODE_FAIL", "SLURM to end the job")
    wait_for(lambda: record(outputs)["state"] == "failed", "the run to record its end")
    lab.run("scontrol", "update", f"nodename={node}", "state=resume")


def preempt_then_cancel(lab: Lab, job: str, node: str, outputs: Path) -> None:
    lab.preempt(node)
    wait_for(lambda: lab.info(job).get("PreemptTime", "None") != "None", "the preemption")
    time.sleep(1)  # SLURM's times are whole seconds
    lab.run("scancel", job)


def requeue_and_signal_late(lab: Lab, job: str, node: str, outputs: Path) -> None:
    """A SIGTERM that was meant for the start before, as SLURM delivers it where a node was away for
    a while."""
    lab.run("scontrol", "requeue", job)
    wait_for(lambda: len(record(outputs)["attempts"]) == 2, "the second start")
    (folder,) = run_folders(outputs)
    first = record(outputs)["attempts"][0]["end_step"]
    wait_for(lambda: steps_done(folder) > first + 1, "its second step")
    # From a frozen node that wakes: it has no effect.
    lab.run("scancel", "--signal=KILL", f"{job}.0", check=False)
    lab.run("scancel", "--signal=TERM", f"{job}.1")


def preempt_and_look(lab: Lab, job: str, node: str, outputs: Path) -> None:
    """The job stays until SLURM ends it, but does not keep the run's lock: another node may resume
    the run."""
    lab.preempt(node, seconds=30)
    wait_for(
        lambda: "not answer" in str(record(outputs)["attempts"][-1]["reason"]),
        "the run to report the silence",
    )
    assert record(outputs)["state"] == "preempted"
    assert lab.info(job)["JobState"] in ("RUNNING", "COMPLETING")
    (folder,) = run_folders(outputs)
    assert not (folder / "run.lock").exists()


FOUR_RANKS = ["dispatch.nodes=2", "dispatch.tasks_per_node=2", "strategy=fsdp"]
PREEMPTED = "preempted, requeued"
NO_SCONTROL = [
    "mkdir -p OUTPUTS/.bin",
    "ln -sf $(command -v srun bash sed) OUTPUTS/.bin",
    "export PATH=OUTPUTS/.bin",
]
HANG = ["tracker.pace.seconds=0.1", f"+tracker.pace.hang_at={INTERVAL + 2}"]
"""After the first checkpoint."""
SLOW_PYTHON = [f"dispatch.python={TESTS / 'support' / 'slow_python.sh'}"]
REAL_PYTHON = [f"dispatch.python={sys.executable}"]
"""An interpreter for each start, and not one that the tests' server forks."""
KILLED: dict[str, Any] = {"outcome": "killed", "reason": "without recording why", "lossless": False}
CANCELLED: dict[str, Any] = {"outcome": "cancelled", "final": "CANCELLED", "starts": 1}
INCIDENTS = [  # the longest start first
    Incident(
        "time limit",
        wait,
        # SLURM warns up to 30 s early: within 50 to 80 s of a start, of which the first takes 120 s
        # and the second few
        overrides=["dispatch.time=3", "dispatch.signal_delay=100", "tracker.pace.seconds=1"],
        reason="timed out, requeued",
    ),
    Incident("power cut", cut_power, **KILLED),
    Incident("daemon lost", lose_daemon, nodes=2, overrides=["tracker.pace.seconds=1"], **KILLED),
    Incident(
        "late signal",
        requeue_and_signal_late,
        overrides=["+tracker.pace.starts=2"],
        reason="requeued by SLURM",
        starts=3,
    ),
    Incident(
        "preempted, hangs",
        preempt,
        "pcancel",
        overrides=HANG,
        reason="preempted, requeued; ",
        lossless=False,
    ),
    Incident("preempted before it runs", preempt, "pcancel", at_once=True, overrides=SLOW_PYTHON),
    Incident(
        "preempted, 2 nodes x 2 tasks", preempt, "preempt", nodes=2, overrides=FOUR_RANKS, ranks=4
    ),
    *(
        Incident(
            f"preempted, {partition}, user signal {'on' if on else 'off'}",
            preempt,
            partition,
            on,
            reason=reason,
        )
        for on, partition, reason in (
            (True, "preempt", PREEMPTED),
            (True, "nograce", "requeued by SLURM"),
            (True, "ncancel", PREEMPTED),  # it gets SIGTERM on both clusters
            (False, "nograce", "requeued by SLURM"),
            (False, "pcancel", PREEMPTED),
        )
    ),
    Incident("preempted at its start", preempt, "preempt", at_once=True, overrides=REAL_PYTHON),
    Incident("cancelled", cancel, overrides=REAL_PYTHON, reason="was cancelled", **CANCELLED),
    Incident(
        "preempted, then cancelled, hangs",
        preempt_then_cancel,
        "preempt",
        overrides=HANG,
        reason="the SLURM job was cancelled; Still running",
        lossless=False,
        **CANCELLED,
    ),
    Incident(
        "batch script killed",
        kill_batch_script,
        outcome="failed",
        reason="SLURM ended the job: COMPLETING (JobLaunchFailure)",
        final="FAILED",
        starts=1,
    ),
    Incident(
        "node set down, without requeue",
        set_down,
        overrides=["+dispatch.sbatch.requeue=false"],
        outcome="failed",
        reason="SLURM ended the job: NODE_FAIL (NodeDown)",
        final="NODE_FAIL",
        starts=1,
    ),
    Incident(
        "batch script warned",
        warn_batch_script,
        outcome="completed",
        reason="",
        starts=1,
        overrides=["tracker.pace.seconds=0.12"],
    ),
    Incident("killed by hand", kill_task, reason="", final="FAILED", starts=1),
    Incident(
        "drained",
        drain,
        outcome="completed",
        reason="",
        starts=1,
        overrides=["tracker.pace.seconds=0.12"],
    ),
    Incident(
        "preempted, nograce, budget spent",
        preempt,
        "nograce",
        overrides=["dispatch.max_preemptions=0"],
        outcome="failed",
        reason="max_preemptions=0",
        final="FAILED",
    ),
    Incident(
        "preempted, SLURM does not answer",
        preempt_and_look,
        "nograce",
        nodes=2,
        overrides=[f"dispatch.setup={NO_SCONTROL}"],
        reason="does not answer why",
    ),
]
Happened = dict[str, tuple[Path, Future[tuple[str, int, str]]]]


def happen(incident: Incident, lab: Lab, nodes: list[str], outputs: Path) -> tuple[str, int, str]:
    """The job's id, the step at which it happened, and the job's last state."""
    every = [f"node{number}" for number in range(1, int(lab.settings["NODES"]) + 1)]
    others = ",".join(node for node in every if node not in nodes)
    place = [f"dispatch.partition={incident.partition}", f"dispatch.exclude='{others}'"]
    overrides = [override.replace("OUTPUTS", str(outputs)) for override in incident.overrides]
    with STARTING:
        job = lab.submit(outputs, *place, *overrides)
        if incident.at_once:
            wait_for(lambda: lab.info(job)["JobState"] == "RUNNING", f"job {job} to start")
        elif incident.lossless:
            wait_for_step(outputs)
        else:
            sign = "hangs" if incident.overrides == HANG else "checkpoints/step-*/manifest.json"
            wait_for(lambda: list(outputs.glob(f"*/*/{sign}")), f"{sign} in {outputs}")
    node = lab.info(job)["NodeList"].replace("[", "").split(",")[0].split("-")[0]
    step = max(map(steps_done, run_folders(outputs)), default=0)
    incident.act(lab, job, node, outputs)
    return job, step, lab.wait_until_ended(job)


@contextmanager
def begun(
    incidents: list[Incident], lab_of: Callable[[Incident], Lab], folder: Callable[[], Path]
) -> Iterator[Happened]:
    """Start them, a few at a time: name -> (folder of the outputs, future of `happen`)."""
    free = {True: iter(range(1, 100)), False: iter(range(1, 100))}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started: Happened = {}
        for incident in incidents:
            nodes = [f"node{next(free[incident.user_signal])}" for _ in range(incident.nodes)]
            outputs = folder()
            future = pool.submit(happen, incident, lab_of(incident), nodes, outputs)
            started[incident.name] = outputs, future
        yield started
