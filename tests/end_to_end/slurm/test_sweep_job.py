"""A sweep inside one SLURM job, by the script of docs/slurm.md, on a real cluster."""

import shlex
import sys
from itertools import pairwise

from support.lab import (
    MAX_WAIT_S,
    QUICK,
    attempts_of,
    experiment,
    record_of,
    run_folders,
    steps_done,
    wait_for,
)
from support.runner import metrics_of, start, state_of

SCRIPT = """#!/bin/bash
#SBATCH --partition=preempt --requeue --signal=USR2@100 --open-mode=append
#SBATCH --output={log}
srun bash -c 'trap "" TERM USR1 USR2; exec "$@"' sweep \\
    {command}
"""
SWEEP = ["-m", "seed=1,2,3", "dispatch.parallel=2"]


def launches(outputs):
    return [len(attempts_of(folder)) for folder in run_folders(outputs)]


def least_step(outputs):
    return min(map(steps_done, run_folders(outputs)))


def restarts(lab, job):
    return int(lab.info(job)["Restarts"])


def test_a_sweep_in_a_job_that_is_preempted_twice_and_reaches_its_time_limit(
    small_cluster, tmp_path
):
    lab, outputs, alone = small_cluster, tmp_path / "outputs", tmp_path / "alone"
    undisturbed = start("-m", "launcher", *experiment(alone), *QUICK, *SWEEP)
    paced = ["tracker.pace.seconds=1", "+tracker.pace.starts=3"]
    command = [sys.executable, "-u", "-m", "launcher", *experiment(outputs), *paced, *SWEEP]
    log, script = tmp_path / "job.log", tmp_path / "sweep.sbatch"
    script.write_text(SCRIPT.format(log=log, command=shlex.join(command)))
    job = lab.run("sbatch", "--parsable", str(script)).strip()
    for launch in (1, 2, 3):
        wait_for(lambda: len(run_folders(outputs)) == 2, "two runs to begin")
        wait_for(lambda launch=launch: launches(outputs) == [launch] * 2, f"launch {launch}")
        begun = max(map(steps_done, run_folders(outputs)))
        wait_for(lambda begun=begun: least_step(outputs) > begun + 2, "both runs to train")
        if launch < 3:
            lab.preempt(lab.info(job)["NodeList"])
        else:
            # SLURM warns up to 30 s early, within 50 to 80 s.
            lab.run("scontrol", "update", f"jobid={job}", "TimeLimit=3")
        wait_for(lambda launch=launch: restarts(lab, job) == launch, f"requeue {launch}")
    assert lab.wait_until_ended(job) == "COMPLETED", log.read_text()
    assert restarts(lab, job) == 3
    assert log.read_text().count("Stopped: 2 saved, 1 not started") == 3, log.read_text()

    text, _ = undisturbed.communicate(timeout=MAX_WAIT_S)
    assert undisturbed.returncode == 0, text
    folders = run_folders(outputs)
    assert [folder.name for folder in folders] == [folder.name for folder in run_folders(alone)]
    assert sorted(len(attempts_of(folder)) for folder in folders) == [1, 4, 4]
    for folder in folders:
        attempts = attempts_of(folder)
        outcomes = [attempt["outcome"] for attempt in attempts]
        assert outcomes == ["preempted"] * (len(attempts) - 1) + ["completed"]
        assert all(one["end_step"] == next["start_step"] for one, next in pairwise(attempts))
        assert record_of(folder)["state"] == "completed"
        reference = alone / folder.relative_to(outputs)
        assert metrics_of(folder) == metrics_of(reference)
        assert state_of(folder) == state_of(reference)
