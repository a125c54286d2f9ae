"""Other ways onto a cluster than `dispatch=slurm`: scripts for sbatch, and Hydra's own
launchers."""

from support.lab import MAX_WAIT_S, ROOT, experiment, wait_for_step
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
    process = lab.begin("launcher", *words, stdout=2)
    try:
        wait_for_step(tmp_path)
        job = record(tmp_path)["attempts"][0]["slurm_job_id"]
        lab.preempt(lab.info(job)["NodeList"])
        assert process.wait(timeout=MAX_WAIT_S) == 0
    finally:
        process.kill()
    first, last = record(tmp_path)["attempts"]
    assert first["reason"] == "preempted, requeued" and first["end_step"] == last["start_step"]
    assert [first["world_size"], last["world_size"]] == [2, 2]
    assert final_state(tmp_path) == final_state(undisturbed(2, "strategy=ddp"))
