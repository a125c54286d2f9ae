"""Jobs whose number of nodes changes, on a real cluster."""

from itertools import pairwise

import pytest

from launcher.rundir.folder import RunFolder
from support.lab import INTERVAL, run_folders, steps_done, wait_for
from support.reloading import stored
from support.runner import TIMES, metrics, record, run_folder
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


def test_with_lanes_a_run_on_changing_nodes_equals_one_on_one_rank(
    start_lab, tmp_path, undisturbed
):
    """It is preempted three times, gets another number of nodes each time, and then loses one."""
    lab = start_lab(NODES="4", DBD="0")
    lanes = ["trainer.lanes=8", "data.batch_size=32", "model.dropout=0.1", "trainer.max_steps=60"]
    place = ["strategy=fsdp", "dispatch.nodes=1-4", "dispatch.partition=preempt"]
    pace = ["tracker.pace.seconds=0.3", "+tracker.pace.starts=4"]
    job = lab.submit(tmp_path, *lanes, *place, *pace)
    (folder,) = run_folders(tmp_path)

    def attempts():
        return record(tmp_path)["attempts"]

    def wait_for_start(number):
        def has_trained():
            assert record(tmp_path)["state"] != "failed", log(folder, job)
            started = len(attempts()) == number
            return started and steps_done(folder) > attempts()[-1]["start_step"] + 2

        wait_for(has_trained, f"start {number} to train")

    wait_for_start(1)
    kept = [occupy(lab, "node4")]
    wait_for_start(2)
    kept += [occupy(lab, node) for node in ("node2", "node3")]
    wait_for_start(3)
    for each in kept:
        lab.run("scancel", each)
    wait_for(lambda: all(lab.state_of(node) == "IDLE" for node in OTHERS), "free nodes")
    occupy(lab, "node1")
    wait_for_start(4)
    lab.node("crash", "node2")
    lab.run("scontrol", "update", "nodename=node2", "state=down", "reason=test")
    assert lab.wait_until_ended(job) == "COMPLETED", log(folder, job)

    assert [attempt["world_size"] for attempt in attempts()] == [4, 2, 1, 2, 2], log(folder, job)
    assert [attempt["outcome"] for attempt in attempts()][:4] == [*["preempted"] * 3, "killed"]
    assert log(folder, job).count("3 nodes allocated, 2 used: trainer.lanes=8") == 2
    alone = undisturbed(1, *lanes)
    assert run_folder(alone).name == folder.name
    assert stored(str(folder))["tensors"] == stored(str(run_folder(alone)))["tensors"]
    assert without_times(tmp_path) == without_times(alone)


OTHERS = "node2", "node3", "node4"


def log(folder, job):
    return (folder / "logs" / f"slurm-{job}.log").read_text()


def without_times(outputs):
    """metrics.jsonl."""
    lines = metrics(outputs)
    assert [line["step"] for line in lines if "train/loss" in line] == list(range(1, 61))
    return [{key: line[key] for key in line if key not in TIMES} for line in lines]


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
    """The step of the newest checkpoint."""
    return max((RunFolder(folder).newest_step() for folder in run_folders(outputs)), default=0)
