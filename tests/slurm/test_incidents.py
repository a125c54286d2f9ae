"""What befalls jobs, on a real cluster: each run ends as if nothing had happened.

All incidents happen side by side, each on nodes of its own, since most of their time is SLURM's waiting.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launcher.record import read_record
from runner import final_state, metrics, record
from slurm.lab import Lab, run_folders, wait_for, wait_for_step

INTERVAL = 25


@dataclass
class Incident:
    """
    Args:
        name: of the test.
        act: is given the cluster, the job and its first node once the run has done some steps.
        partition: where the run is.
        user_signal: on the cluster that sends a job's own signal at a preemption, or on the one that does not.
        nodes: how many the run may use; they are its own.
        overrides: of the command line.
        ranks: of the run.
        outcome: of the first attempt in run.json.
        reason: what it says there.
        final: SLURM's word for the job's end.
        lossless: a signal came, so no step may be lost; else one interval at most.
        starts: how often the job started.
    """

    name: str
    act: Callable[[Lab, str, str], None]
    partition: str = "main"
    user_signal: bool = True
    nodes: int = 1
    overrides: list[str] = field(default_factory=list)
    ranks: int = 1
    outcome: str = "preempted"
    reason: str = "requeued"
    final: str = "COMPLETED"
    lossless: bool = True
    starts: int = 2


def preempt(lab: Lab, job: str, node: str) -> None:
    lab.preempt(node)


def requeue(lab: Lab, job: str, node: str) -> None:
    lab.run("scontrol", "requeue", job)


def cancel(lab: Lab, job: str, node: str) -> None:
    lab.run("scancel", job)


def wait(lab: Lab, job: str, node: str) -> None:
    """The time limit comes by itself."""


def cut_power(lab: Lab, job: str, node: str) -> None:
    """The machine is gone, and back when SLURM has noticed."""
    lab.node("crash", node)
    wait_for(lambda: lab.info(job)["JobState"] in ("PENDING", "NODE_FAIL"), "SLURM to miss the node")
    lab.node("start", node)


def lose_daemon(lab: Lab, job: str, node: str) -> None:
    """The node is lost to SLURM alone: its processes go on while the job starts anew elsewhere."""
    lab.node("slurmd-kill", node)


def drain(lab: Lab, job: str, node: str) -> None:
    lab.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    lab.preempt(node)  # waits for ever, and must not matter


def kill_task(lab: Lab, job: str, node: str) -> None:
    """A bare SIGTERM, of which SLURM knows nothing."""
    lab.run("scancel", "--signal=TERM", f"{job}.0")


FOUR_RANKS = ["dispatch.nodes=2", "dispatch.tasks_per_node=2", "strategy=fsdp"]
PREEMPTED = "preempted, requeued"
INCIDENTS = [
    *(
        Incident(f"preempted, {partition}, user signal {'on' if on else 'off'}", preempt, partition, on, reason=reason)
        for on in (True, False)
        for partition, reason in (
            ("preempt", PREEMPTED),
            ("nograce", "requeued by SLURM"),
            ("pcancel", PREEMPTED),
            ("ncancel", PREEMPTED),
        )
    ),
    Incident("preempted, 2 nodes x 2 tasks", preempt, "preempt", nodes=2, overrides=FOUR_RANKS, ranks=4),
    Incident(
        "time limit",
        wait,
        overrides=["dispatch.time=1", "dispatch.signal_delay=15"],
        reason="timed out, requeued",
    ),
    Incident("requeued", requeue, reason="requeued by SLURM"),
    Incident(
        "cancelled",
        cancel,
        outcome="cancelled",
        reason="was cancelled",
        final="CANCELLED",
        starts=1,
    ),
    Incident("killed by hand", kill_task, reason="", final="FAILED", starts=1),
    Incident("power cut", cut_power, outcome="killed", reason="without a word", lossless=False),
    Incident("daemon lost", lose_daemon, nodes=2, outcome="killed", reason="without a word", lossless=False),
    Incident("drained", drain, outcome="completed", reason="", starts=1, overrides=["tracker.pace.seconds=0.03"]),
    Incident(
        "preempted, budget spent",
        preempt,
        "preempt",
        overrides=["dispatch.max_preemptions=0"],
        outcome="failed",
        reason="max_preemptions=0",
        final="FAILED",
        starts=1,
    ),
]


def happen(incident: Incident, lab: Lab, nodes: list[str], outputs: Path) -> tuple[str, str]:
    """The job's id, and how SLURM says it ended."""
    others = [f"node{number}" for number in range(1, int(lab.settings["NODES"]) + 1) if f"node{number}" not in nodes]
    place = [f"dispatch.partition={incident.partition}", f"dispatch.exclude='{','.join(others)}'"]
    job = lab.submit(outputs, *place, *incident.overrides)
    wait_for_step(outputs)
    incident.act(lab, job, lab.info(job)["NodeList"].replace("[", "").split(",")[0].split("-")[0])
    return job, lab.wait_until_ended(job)


@pytest.fixture(scope="module")
def happened(request, cluster, plain_cluster, tmp_path_factory):
    """All incidents that are asked for, begun at once: name -> (folder of the outputs, future of `happen`)."""
    given = [getattr(item, "callspec", None) for item in request.session.items if item.module is request.module]
    asked = {spec.params["incident"].name for spec in given if spec is not None}
    free = {True: iter(range(1, 100)), False: iter(range(1, 100))}
    futures: dict[str, tuple[Path, Future[tuple[str, str]]]] = {}
    with ThreadPoolExecutor(len(INCIDENTS)) as pool:
        for incident in INCIDENTS:
            nodes = [f"node{next(free[incident.user_signal])}" for _ in range(incident.nodes)]
            if incident.name in asked:
                lab = cluster if incident.user_signal else plain_cluster
                outputs = tmp_path_factory.mktemp("outputs")
                futures[incident.name] = outputs, pool.submit(happen, incident, lab, nodes, outputs)
        yield futures


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_a_run_goes_on_as_if_nothing_had_happened(happened, incident, undisturbed):
    outputs, future = happened[incident.name]
    job, final = future.result(timeout=280)
    attempts = record(outputs)["attempts"]
    first, last = attempts[0], attempts[-1]
    logs = "".join(path.read_text()[-3000:] for path in outputs.glob("*/*/logs/slurm*"))

    assert final == incident.final, logs
    assert len(attempts) == incident.starts, logs
    assert first["outcome"] == incident.outcome and incident.reason in (first["reason"] or ""), logs
    assert {one["slurm_job_id"] for one in attempts} == {job}
    (folder,) = run_folders(outputs)
    if final != "COMPLETED":
        assert record(outputs)["state"] == incident.outcome
        assert (folder / "checkpoints" / f"step-{last['end_step']:08d}" / "manifest.json").exists()
        return
    assert record(outputs)["state"] == "completed"
    reference = undisturbed(incident.ranks, *(incident.overrides[2:] if incident.ranks > 1 else ()))
    assert final_state(outputs) == final_state(reference)
    if incident.ranks == 1:
        assert metrics(outputs) == metrics(reference)  # each step once
    if incident.starts > 1:
        lost = first["end_step"] - last["start_step"]
        assert lost == 0 if incident.lossless else lost <= INTERVAL
        assert 0 < last["start_step"] < last["end_step"]


def test_tasks_of_an_array_each_go_on(cluster, tmp_path, undisturbed):
    lab = cluster
    place = ["dispatch.partition=preempt", "+dispatch.sbatch.nodelist=node16", "tracker.pace.seconds=0.2"]
    job = lab.submit(tmp_path, *place, "-m", "seed=0,1,2")
    wait_for_step(tmp_path, 10, runs=3)
    lab.preempt("node16")
    for task in range(3):
        assert lab.wait_until_ended(f"{job}_{task}") == "COMPLETED"
    records = [read_record(folder / "run.json") for folder in run_folders(tmp_path)]
    assert [one["state"] for one in records] == ["completed"] * 3
    assert sorted(one["attempts"][-1]["slurm_job_id"] for one in records) == [f"{job}_{task}" for task in range(3)]
    for one in records:
        first, last = one["attempts"]
        assert first["end_step"] == last["start_step"]
