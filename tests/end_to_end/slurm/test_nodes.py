"""Jobs whose number of nodes changes, on a real cluster."""

from support.lab import run_folders, steps_done, wait_for
from support.reloading import stored
from support.runner import metrics, record, run_folder


def test_with_lanes_a_run_on_changing_nodes_equals_one_on_one_rank(
    small_cluster, tmp_path, undisturbed
):
    """It is preempted three times, gets another number of nodes each time, and then loses one."""
    lab = small_cluster
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
    kept = [lab.preempt("node4", KEPT)]
    wait_for_start(2)
    kept += [lab.preempt(node, KEPT) for node in ("node2", "node3")]
    wait_for_start(3)
    lab.run("scancel", *kept)
    wait_for(lambda: all(lab.state_of(node) == "IDLE" for node in OTHERS), "free nodes")
    kept = lab.preempt("node1", KEPT)
    wait_for_start(4)
    lab.node("crash", "node2")
    lab.run("scontrol", "update", "nodename=node2", "state=down", "reason=test")
    assert lab.wait_until_ended(job) == "COMPLETED", log(folder, job)
    lab.run("scancel", kept)

    assert [attempt["world_size"] for attempt in attempts()] == [4, 2, 1, 2, 2], log(folder, job)
    *preempted, lost, _ = [attempt["outcome"] for attempt in attempts()]
    assert preempted == ["preempted"] * 3
    # Seen once in many runs: it had been told to stop before its node was gone.
    assert lost in ("killed", "preempted"), attempts()
    assert log(folder, job).count("3 nodes allocated, 2 used: trainer.lanes=8") == 2
    alone = undisturbed(1, *lanes)
    assert run_folder(alone).name == folder.name
    assert stored(str(folder))["tensors"] == stored(str(run_folder(alone)))["tensors"]
    assert metrics(tmp_path) == metrics(alone)
    steps = [line["step"] for line in metrics(tmp_path) if "train/loss" in line]
    assert steps == list(range(1, 61))


OTHERS = "node2", "node3", "node4"
KEPT = 3000
"""Seconds: longer than the test."""


def log(folder, job):
    return (folder / "logs" / f"slurm-{job}.log").read_text()
