"""Jobs whose number of nodes changes, on a real cluster."""

from itertools import pairwise

import pytest

from launcher.rundir.folder import RunFolder
from support.lab import INTERVAL, run_folders, steps_done, wait_for, wait_for_step
from support.runner import metrics, record, run_folder
from support.witness import samples_of_steps

RUN = [
    "strategy=ddp",
    "trainer.max_steps=60",
    "data.batch_size=60",
    "trainer.micro_batch_size=20",
    "+tracker.witness._target_=support.witness.Witness",
]


def occupy(lab, node):
    """A job with a higher priority that keeps a node; its id."""
    return lab.run(
        "sbatch",
        "--parsable",
        "-p",
        "main",
        "-w",
        node,
        "--exclusive",
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 3000",
    ).strip()


def assert_same_run(outputs, alone):
    """The same samples in the same order, and losses that differ by rounding."""
    assert samples_of_steps(run_folder(outputs)) == samples_of_steps(run_folder(alone))
    assert losses_of(outputs) == pytest.approx(losses_of(alone), rel=1e-4)


def losses_of(outputs):
    """The loss of each step."""
    lines = [line for line in metrics(outputs) if "train/loss" in line]
    assert [line["step"] for line in lines] == list(range(1, 61))
    return [line["train/loss"] for line in lines]


def test_a_run_changes_its_number_of_nodes(start_lab, tmp_path, undisturbed):
    """It starts on four, is preempted, continues on one, and ends on two."""
    lab = start_lab(NODES="4", DBD="0")
    pace = ["tracker.pace.seconds=0.3", "+tracker.pace.starts=2"]
    place = ["dispatch.nodes=1-4", "dispatch.partition=preempt"]
    job = lab.submit(tmp_path, *RUN, *place, *pace)
    wait_for_step(tmp_path)
    kept = [occupy(lab, node) for node in ("node2", "node3", "node4")]
    wait_for(lambda: len(record(tmp_path)["attempts"]) == 2, "the second start")
    first = record(tmp_path)["attempts"][0]["end_step"]
    (folder,) = run_folders(tmp_path)
    wait_for(lambda: steps_done(folder) > first + 2, "steps on one node")
    lab.run("scancel", kept[0])
    lab.run("scontrol", "requeue", job)
    assert lab.wait_until_ended(job) == "COMPLETED"

    attempts = record(tmp_path)["attempts"]
    assert [attempt["world_size"] for attempt in attempts] == [4, 1, 2]
    assert [attempt["end_step"] for attempt in attempts[:-1]] == [
        attempt["start_step"] for attempt in attempts[1:]
    ]
    assert_same_run(tmp_path, undisturbed(1, *RUN))


def test_a_run_restarts_when_nodes_are_lost(start_lab, tmp_path, undisturbed):
    """Inside its job: on the spare, then on the nodes that are left. The loss of the first node,
    which has the batch script, requeues the job."""
    lab = start_lab(NODES="4", DBD="0")
    place = [
        "dispatch.nodes=1-3",
        "dispatch.spares=1",
        "dispatch.no_kill=true",
        "tracker.pace.seconds=0.2",
    ]
    job = lab.submit(tmp_path, *RUN, *place)
    for number, lost in enumerate(("node2", "node3", "node1"), 1):
        wait_for(lambda: newest_step(tmp_path) >= number * INTERVAL, "a checkpoint")  # noqa: B023
        lab.node("crash", lost)
        if lost == "node1":
            lab.node("start", "node2")  # a requeued job asks for the spare too
        wait_for(lambda: len(record(tmp_path)["attempts"]) > number, "a restart")  # noqa: B023
    final, attempts = lab.wait_until_ended(job), record(tmp_path)["attempts"]

    log = (run_folder(tmp_path) / "logs" / f"slurm-{job}.log").read_text()
    assert (final, lab.info(job)["Restarts"]) == ("COMPLETED", "1"), log
    assert [attempt["world_size"] for attempt in attempts] == [3, 3, 2, 1]
    assert [attempt["outcome"] for attempt in attempts] == [
        "killed",
        "killed",
        "killed",
        "completed",
    ]
    assert [attempt["reason"] for attempt in attempts[:3]] == [
        "lost node2: restarts on 3 nodes",
        "lost node3: restarts on 2 nodes",
        "lost node1: requeued",
    ]
    for before, after in pairwise(attempts[:3]):
        assert before["end_step"] - INTERVAL <= after["start_step"] <= before["end_step"]
    # Rank 0 was on node1, and could not say how far it came.
    assert attempts[3]["start_step"] >= 3 * INTERVAL
    assert_same_run(tmp_path, undisturbed(1, *RUN))


def newest_step(outputs):
    """That of the newest checkpoint."""
    return max((RunFolder(folder).newest_step() for folder in run_folders(outputs)), default=0)
