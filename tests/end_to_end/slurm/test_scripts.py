"""Other ways onto a cluster than `dispatch=slurm`: scripts for sbatch, and Hydra's own
launchers."""

import os
import signal
from subprocess import PIPE

from support.lab import (
    MAX_WAIT_S,
    ROOT,
    experiment,
    hurry,
    record_of,
    run_folders,
    wait_for_step,
)
from support.runner import final_state, record


def test_the_scripts_give_the_same_guarantees(cluster, tmp_path, undisturbed):
    lab, jobs = cluster, {}
    (tmp_path / "sweep.txt").write_text("run.tag=null\n")
    submit = f"sbatch --parsable --chdir={tmp_path} -p preempt".split()
    for script, array, lines in (
        ("train", [], []),
        ("sweep", ["--array=1-1"], [str(tmp_path / "sweep.txt")]),
    ):
        words = [*lines, *experiment(tmp_path / script), "model.dropout=0"]
        job = lab.run(*submit, *array, str(ROOT / "slurm" / f"{script}.sbatch"), *words).strip()
        jobs[tmp_path / script] = job + ("_1" if array else "")
    for outputs in jobs:
        wait_for_step(outputs)
    for node in {lab.info(job)["NodeList"] for job in jobs.values()}:
        lab.preempt(node)
    for outputs, job in jobs.items():
        assert lab.wait_until_ended(job) == "COMPLETED"
        first, last = record(outputs)["attempts"]
        assert first["outcome"] == "preempted" and first["end_step"] == last["start_step"] > 0
        assert final_state(outputs) == final_state(undisturbed())


def test_a_preempted_job_of_hydras_submitit_launcher_resumes(cluster, tmp_path, undisturbed):
    """It has two tasks, which are the ranks."""
    lab = cluster
    place = [
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=preempt",
        "hydra.launcher.timeout_min=60",
        "hydra.launcher.tasks_per_node=2",
    ]
    words = [*experiment(tmp_path), "strategy=ddp", *place, "-m", "seed=0"]
    process = lab.begin("launcher", *words)
    try:
        wait_for_step(tmp_path)
        job = record(tmp_path)["attempts"][0]["slurm_job_id"]
        lab.preempt(lab.info(job)["NodeList"])
        output, _ = process.communicate(timeout=MAX_WAIT_S)
        assert process.returncode == 0
    finally:
        process.kill()
    (folder,) = run_folders(tmp_path)
    (line,) = output.splitlines()
    assert line.startswith(f"job 1/1 {folder.parent.name}/{folder.name} ")
    assert line.endswith(f"seed=0: SLURM job {job}, {folder}")
    first, last = record(tmp_path)["attempts"]
    assert first["reason"] == "preempted, requeued" and first["end_step"] == last["start_step"]
    assert [first["world_size"], last["world_size"]] == [2, 2]
    assert final_state(tmp_path) == final_state(undisturbed(2, "strategy=ddp"))


def test_hydras_submitit_launcher_ends_with_the_table_of_a_sweep(cluster, tmp_path):
    """One run fails, one is cancelled before it begins, and the last one is waited for."""
    lab = cluster
    crash = "+tracker.crash={_target_: support.crasher.Crasher, file: crash}"
    place = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=60"]
    words = [*experiment(tmp_path), crash, *place, "-m", "seed=1,2,3"]
    process = lab.begin("launcher", *words, "hydra.launcher.array_parallelism=1", stderr=PIPE)
    wait_for_step(tmp_path)
    (folder,) = run_folders(tmp_path)
    array = record(tmp_path)["attempts"][0]["slurm_job_id"].partition("_")[0]
    lab.run("scancel", f"{array}_1")
    (folder / "crash").touch()
    wait_for_step(tmp_path, runs=2, failed=True)
    hurry(*run_folders(tmp_path))
    output, errors = process.communicate(timeout=MAX_WAIT_S)
    assert process.returncode == 1 and "Traceback" not in output + errors, output + errors
    ids = [line.split(":")[1].split(",")[0] for line in output.splitlines() if line[:4] == "job "]
    assert ids == [f" SLURM job {array}_{task}" for task in range(3)]
    assert "2 of 3 jobs failed:" in errors and "on purpose" in errors, errors
    assert f"seed=2  failed: SLURM job {array}_1: " in errors, errors
    states = sorted(record_of(folder)["state"] for folder in run_folders(tmp_path))
    assert states == ["completed", "failed"]

    waiting = lab.begin("launcher", *words[:-1], "seed=4", stderr=PIPE)
    line = waiting.stdout.readline()
    os.kill(waiting.pid, signal.SIGINT)
    _, errors = waiting.communicate(timeout=MAX_WAIT_S)
    assert waiting.returncode == 130 and "no longer waits for 1 submitted job" in errors, errors
    lab.run("scancel", line.split("SLURM job ")[1].partition(",")[0])

    nowhere = lab.launcher(*words, "hydra.launcher.partition=nowhere")
    assert nowhere.returncode == 2 and "Traceback" not in nowhere.stderr, nowhere.stderr
    message = "hydra/launcher=submitit_slurm: invalid partition specified: nowhere"
    assert nowhere.stderr.splitlines()[-1].startswith(message), nowhere.stderr
