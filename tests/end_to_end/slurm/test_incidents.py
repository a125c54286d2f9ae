"""Incidents of jobs on a real cluster: each run ends as if nothing had happened."""

import os
import shutil
from itertools import pairwise

import pytest

from support.incidents import INCIDENTS
from support.lab import INTERVAL, MAX_WAIT_S, record_of, run_folders, wait_for, wait_for_step
from support.runner import final_state, metrics, record


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_a_run_resumes_as_if_nothing_had_happened(happened, incident, undisturbed):
    outputs, future = happened[incident.name]
    job, step, final = future.result(timeout=MAX_WAIT_S)
    attempts = record(outputs)["attempts"]
    first, last = attempts[0], attempts[-1]
    logs = "".join(path.read_text()[-3000:] for path in outputs.glob("*/*/logs/slurm*"))

    assert final == incident.final, logs
    if incident.at_once:  # before an attempt was begun, or just after
        assert len(attempts) <= incident.starts, logs
    else:
        assert len(attempts) == incident.starts, logs
        # A launch that is not restarted any more is the last one.
        ended = first if final == "COMPLETED" else last
        assert ended["outcome"] == incident.outcome and incident.reason in (
            ended["reason"] or ""
        ), logs
    assert {one["slurm_job_id"] for one in attempts} == {job}
    (folder,) = run_folders(outputs)
    if final != "COMPLETED":
        assert record(outputs)["state"] == incident.outcome
        if not incident.lossless:
            return
        assert (folder / "checkpoints" / f"step-{last['end_step']:08d}" / "manifest.json").exists()
        return
    assert record(outputs)["state"] == "completed"
    reference = undisturbed(incident.ranks, *(incident.overrides[2:] if incident.ranks > 1 else ()))
    assert final_state(outputs) == final_state(reference)
    if incident.ranks == 1:
        assert metrics(outputs) == metrics(reference)  # each step once
    if not incident.lossless:
        assert last["start_step"] >= step - INTERVAL
        return
    for before, after in pairwise(attempts):
        assert before["end_step"] == after["start_step"]
        assert incident.at_once or 0 < after["start_step"] < after["end_step"]


def test_a_controller_that_forgets_a_preemption(start_lab, tmp_path):
    """It is killed when the run is about to ask why it got a signal, and returns when the run has
    asked in vain."""
    lab = start_lab(NODES="1", DBD="0", USERSIG="0")
    closed, asked = tmp_path / "closed", tmp_path / "asked"
    gate = tmp_path / "bin" / "scontrol"  # the one that the job finds
    gate.parent.mkdir()
    gate.write_text(f"""#!/bin/sh
while [ -e {closed} ]; do touch {asked}; sleep 0.1; done
exec {shutil.which("scontrol")} "$@"
""")
    gate.chmod(0o755)
    outputs = tmp_path / "outputs"
    path = f"{gate.parent}{os.pathsep}{lab.environment['PATH']}"
    job = lab.submit(outputs, "dispatch.partition=pcancel", PATH=path)
    wait_for_step(outputs)
    lab.wait_until_saved(job)
    closed.touch()
    lab.preempt("node1")
    wait_for(asked.exists, "the run to ask for the cause")
    lab.kill_controller()
    closed.unlink()
    wait_for(
        lambda: "not answer" in str(record(outputs)["attempts"][0]["reason"]),
        "the run to report the silence",
    )
    lab.start_controller()
    assert lab.wait_until_ended(job) == "COMPLETED"
    first, last = record(outputs)["attempts"]
    assert (first["outcome"], first["end_step"]) == ("preempted", last["start_step"])
    assert "requeued" in first["reason"]


def test_each_task_of_an_array_resumes(cluster, tmp_path):
    lab = cluster
    place = ["dispatch.partition=preempt", "+dispatch.sbatch.nodelist=node4"]
    job = lab.submit(tmp_path, *place, "-m", "seed=0,1")
    wait_for_step(tmp_path, runs=2)
    lab.preempt("node4")
    for task in range(2):
        assert lab.wait_until_ended(f"{job}_{task}") == "COMPLETED"
    records = [record_of(folder) for folder in run_folders(tmp_path)]
    assert [one["state"] for one in records] == ["completed"] * 2
    for one in records:
        first, last = one["attempts"]
        assert first["end_step"] == last["start_step"]
        assert last["slurm_job_id"] == f"{job}_{one['config']['seed']}"
