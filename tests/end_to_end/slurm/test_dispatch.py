"""`dispatch=slurm`, the runs command and the scripts, on a real cluster."""

import json
import signal
import subprocess

import pytest

from support import python
from support.git import commit
from support.lab import (
    INTERVAL,
    MAX_WAIT_S,
    QUICK,
    STEPS,
    experiment,
    job_of,
    record_of,
    run_folders,
    states,
    steps_done,
    wait_for,
    wait_for_step,
)
from support.runner import final_state, metrics, record

HELD = ["+dispatch.sbatch.hold=true"]
CRASH = "+tracker.crash={_target_: support.crasher.Crasher}"


def test_a_run_is_submitted_frozen_and_seen_to_its_end(cluster, tmp_path, undisturbed):
    lab, conf = cluster, tmp_path / "conf"
    (conf / "model").mkdir(parents=True)
    (conf / "model" / "mine.yaml").write_text("defaults: [mlp, _self_]\nhidden_dim: 16\n")
    outputs = tmp_path / "outputs"
    words = [word for word in experiment(outputs) if not word.startswith("model")]
    command = ["--config-dir", str(conf), "model=mine", *words, *QUICK, "dispatch=slurm"]
    done = lab.launcher(*command, *HELD)
    assert done.returncode == 0, done.stderr
    (folder,) = run_folders(outputs)
    job = job_of(folder)
    assert f"SLURM job {job}, {folder}" in done.stdout
    (run,) = states(lab, outputs).values()
    assert (run["state"], run["job_id"], run["waits_for"]) == ("queued", job, "JobHeldUser")

    (conf / "model" / "mine.yaml").write_text("defaults: [mlp, _self_]\nhidden_dim: 99\n")
    again = lab.launcher(*command, "model.hidden_dim=16")
    assert "0 submitted, 1 skipped" in again.stdout
    frozen = json.loads((folder / "submission.json").read_text())
    assert frozen["config"]["model"]["hidden_dim"] == 16

    follow = ["logs", "mine-digits", "-f", "--outputs", str(outputs)]
    following = lab.begin("launcher.runs", *follow, stderr=2)
    lab.run("scontrol", "release", job)
    assert lab.wait_until_ended(job) == "COMPLETED"
    assert record(outputs)["attempts"][0]["slurm_job_id"] == job
    assert metrics(outputs) == metrics(undisturbed())
    followed, _ = following.communicate(timeout=MAX_WAIT_S)
    assert f"Step {STEPS}/{STEPS}" in followed and f"Completed at step {STEPS}" in followed
    assert f"Completed at step {STEPS}" in lab.runs("logs", outputs, folder.name, "--slurm").stdout

    before = final_state(outputs)  # a job that has done its work is started once more
    lab.run("scontrol", "requeue", job)
    wait_for(
        lambda: lab.info(job)["Restarts"] == "1" and lab.info(job)["JobState"] == "COMPLETED",
        "the second start",
    )
    assert len(record(outputs)["attempts"]) == 1 and final_state(outputs) == before
    assert "is complete already" in (folder / "logs" / f"slurm-{job}.log").read_text()


def test_a_sweep_is_an_array_in_chunks_and_resumes(plain_cluster, tmp_path):
    lab = plain_cluster  # without sacct; its MaxArraySize allows two tasks
    words = [*experiment(tmp_path, steps=20), *QUICK, "dispatch=slurm", "dispatch.partition=main"]
    first = lab.launcher(*words, "dispatch.wait=true", "-m", "seed=0,1")
    assert first.returncode == 0, first.stderr
    assert [run["state"] for run in states(lab, tmp_path).values()] == ["completed"] * 2

    command = [*words, *HELD, "dispatch.wait=true", "dispatch.array_parallelism=1"]
    second = lab.begin("launcher", *command, "-m", "seed=range(5)", stderr=subprocess.PIPE)
    wait_for(
        lambda: len(list(tmp_path.glob("*/*/submission.json"))) == 5, "three more to be submitted"
    )
    second.send_signal(signal.SIGTERM)  # ends the waiting alone
    told, warned = second.communicate(timeout=MAX_WAIT_S)
    assert "3 submitted as SLURM jobs " in told and "2 skipped" in told, told
    assert second.returncode == 143 and "3 runs continue" in warned, warned
    jobs = {run["job_id"] for run in states(lab, tmp_path, "state=queued").values()}
    first, then = sorted({job.partition("_")[0] for job in jobs}, key=int)
    assert len(jobs) == 3 and lab.info(f"{then}_0")["Dependency"].startswith(f"afterany:{first}")
    assert "0 submitted, 5 skipped" in lab.launcher(*words, "-m", "seed=range(5)").stdout

    assert lab.runs("cancel", tmp_path, "seed=3").returncode == 0
    (lost,) = states(lab, tmp_path, "seed=4").values()
    lab.run("scancel", lost["job_id"])  # behind our back, and before it has started
    listed = states(lab, tmp_path, "seed>2").values()
    assert [run["state"] for run in listed] == ["cancelled"] * 2
    assert lab.runs("cancel", tmp_path, "--all").returncode == 0
    assert not {run["state"] for run in states(lab, tmp_path).values()} & {"queued", "running"}

    several = ["dispatch.wait=true", "dispatch.array_parallelism=2", "-m", "seed=range(5)"]
    third = lab.launcher(*words, *several)
    assert "3 submitted" in third.stdout and third.returncode == 0, third.stdout + third.stderr
    assert [run["state"] for run in states(lab, tmp_path).values()] == ["completed"] * 5


def test_a_run_that_waits_in_the_queue_is_rolled_back(cluster, tmp_path, undisturbed):
    """Not one whose job runs. A job that is on hold already stays so."""
    keep = ["hooks.checkpointing.keep_previous=99", "hooks.checkpointing.interval=2"]
    place = ["dispatch.partition=preempt", "+dispatch.sbatch.nodelist=node4"]
    job = cluster.submit(tmp_path, *keep, *place)
    wait_for_step(tmp_path, 6)
    (folder,) = run_folders(tmp_path)
    busy = cluster.runs("rollback", tmp_path, folder.name, "2")
    assert busy.returncode == 2 and "cancel" in busy.stderr, busy.stderr
    other = cluster.preempt("node4", seconds=1000)
    wait_for(lambda: cluster.info(job)["JobState"] == "PENDING", "the job to wait again")
    for step, reason in (("4", "JobHeldUser"), ("2", "")):
        cluster.run("scontrol", "hold" if reason else "release", job)
        done = cluster.runs("rollback", tmp_path, folder.name, step)
        assert done.returncode == 0 and f"by SLURM job {job}" in done.stdout, done.stderr
        assert ("scontrol release" in done.stdout) == bool(reason)
        assert (cluster.info(job)["Priority"] == "0") == bool(reason)
    cluster.run("scancel", other)
    assert cluster.wait_until_ended(job) == "COMPLETED"
    assert [each["start_step"] for each in record(tmp_path)["attempts"]] == [0, 2]
    assert metrics(tmp_path) == metrics(undisturbed())


def test_a_crash_is_a_failure_everywhere_and_is_not_repeated(cluster, tmp_path):
    lab = cluster
    words = [*experiment(tmp_path, steps=20), *QUICK, "dispatch=slurm", "dispatch.wait=true"]
    done = lab.launcher(*words, "-m", "seed=0,1", CRASH)
    assert done.returncode == 1 and "2 of 2 jobs failed" in done.stderr, done.stdout + done.stderr
    assert done.stderr.count(" failed: RuntimeError: on purpose") == 2
    for run in states(lab, tmp_path).values():
        assert run["state"] == "failed" and "on purpose" in run["attempts"][-1]["reason"]
        assert lab.wait_until_ended(run["job_id"]) == "FAILED"
        assert lab.info(run["job_id"])["Restarts"] == "0" and len(run["attempts"]) == 1
    folder = run_folders(tmp_path)[0]
    frozen = json.loads((folder / "submission.json").read_text())
    del frozen["config"]["tracker"]["crash"]
    (folder / "submission.json").write_text(json.dumps(frozen))
    changed = lab.runs("retry", tmp_path, folder.name)
    assert changed.returncode == 2 and "has not signed it; add --trust" in changed.stderr
    retried = lab.runs("retry", tmp_path, folder.name, "--trust")
    assert retried.returncode == 0, retried.stderr
    assert lab.wait_until_ended(job_of(folder)) == "COMPLETED"
    assert states(lab, tmp_path, folder.name).popitem()[1]["state"] == "completed"


def test_restarts_without_progress_end(cluster, tmp_path):
    """The last one is on another node than the killed process whose lock it finds."""
    lab = cluster
    slow = ("tracker.pace.seconds=5", "+tracker.pace.starts=3")
    job = lab.submit(tmp_path, "dispatch.max_fruitless_restarts=1", "trainer.max_steps=5000", *slow)
    for start in (1, 2):  # before anything is saved
        wait_for(lambda start=start: len(starts(tmp_path, job)) == start, "a start to be noted")
        wait_for(lambda: list(tmp_path.glob("*/*/run.lock")), "the run to be locked")
        lab.run("scancel", "--signal=KILL", last_step(lab, job))
        # SLURM may reject the requeue of a job that is about to end.
        assert lab.wait_until_ended(job) == "FAILED"
        node = lab.info(job)["NodeList"]
        lab.run("scontrol", "requeuehold", job)
        lab.run("scontrol", "update", f"jobid={job}", f"excnodelist={node}")
        lab.run("scontrol", "release", job)
    wait_for(lambda: lab.info(job)["Restarts"] == "2", "the last start")
    assert lab.wait_until_ended(job) == "FAILED" and lab.info(job)["NodeList"] != node
    (folder,) = run_folders(tmp_path)
    assert record_of(folder)["state"] == "failed" and steps_done(folder) < INTERVAL
    assert "without a new checkpoint" in (folder / "logs" / f"slurm-{job}.log").read_text()


def last_step(lab, job):
    """The step of the ranks; those before it are empty, and the script's has no number."""
    listed = lab.run("squeue", "--steps", "-h", "-j", job, "-o", "%i").split()
    numbers = [
        int(number) for _, number in (step.split(".") for step in listed) if number.isdigit()
    ]
    return f"{job}.{max(numbers)}"


def starts(outputs, job):
    paths = list(outputs.glob("*/*/restarts.json"))
    return json.loads(paths[0].read_text())[job]["starts"] if paths else []


def test_dry_run_says_what_is_wrong_and_submits_nothing(cluster, tmp_path):
    lab = cluster
    words = [*experiment(tmp_path), "dispatch=slurm", "dispatch.dry_run=true", "-m", "seed=0,1"]
    wanted = ["dispatch.cpus_per_task=2", "dispatch.gpus_per_node=2", "dispatch.mem=1G"]
    fine = lab.launcher(*words, *wanted)
    assert fine.returncode == 0 and "No problems found" in fine.stdout, fine.stdout + fine.stderr
    flags = "array=0-1 cpus-per-task=2 gpus-per-node=2 ntasks-per-node=2 mem=1G requeue"
    for flag in flags.split():
        assert f"#SBATCH --{flag}" in fine.stdout
    wanted = ["dispatch.partition=nograce", "dispatch.time=1", "dispatch.gpus_per_node=64"]
    wrong = lab.launcher(*words, *wanted, SLURM_JOB_ID="1", SLURM_NTASKS="3")
    assert "! dispatch.time=1: is not longer than dispatch.signal_delay=120 s" in wrong.stdout
    assert "! dispatch.partition: it preempts without a grace" in wrong.stdout
    assert "! sbatch: would reject it" in wrong.stdout
    lab.launcher(*words[:-2])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "overrides",
    [("-m", "seed=0,1"), ("dispatch.snapshot=true",), ("dispatch.sbatch.dependency=1",)],
    ids=["array", "snapshot", "dependency"],
)
def test_submission_that_sbatch_would_reject_is_one_message(cluster, tmp_path, overrides):
    place = ["dispatch=slurm", "dispatch.partition=nowhere"]
    done = cluster.launcher(*experiment(tmp_path), *place, *overrides)
    assert done.returncode == 2 and "dispatch=slurm: " in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_runs_the_code_as_it_was(cluster, tmp_path):
    lab, project = cluster, tmp_path / "project"
    (project / "mine").mkdir(parents=True)
    (project / "mine" / "__init__.py").write_text(
        "from launcher.jobs.train import TrainJob\nfrom mine import _version, new\n"
        "class Job(TrainJob):\n"
        "    def run(self, config): print('this is version', VERSION, flush=True)\nVERSION = 1\n"
    )
    (project / ".gitignore").write_text("_version.py\n")
    commit(project)
    for name in ("new.py", "_version.py", "table.csv"):  # git does not track them
        (project / "mine" / name).touch()
    source = project / "mine" / "__init__.py"
    # Not committed, and yet it counts.
    source.write_text(source.read_text().replace("VERSION = 1", "VERSION = 2"))
    words = "paths.outputs=outputs model=mlp data=digits job._target_=mine.Job dispatch=slurm"
    outputs = project / "outputs"

    def submit(*overrides):
        command = ["-m", "launcher", *words.split(), *HELD, *overrides]
        python.run(*command, cwd=project, env=lab.environment, timeout=MAX_WAIT_S, check=True)

    def output_of_job(folder):
        job = job_of(folder)
        lab.run("scontrol", "release", job)
        lab.wait_until_ended(job)
        return (folder / "logs" / f"slurm-{job}.log").read_text()

    submit("dispatch.snapshot=true")
    source.write_text(source.read_text().replace("VERSION = 2", "VERSION = 3  # of another size"))
    (folder,) = run_folders(outputs)
    assert "this is version 2" in output_of_job(folder)
    (snapshot,) = (outputs / ".slurm").glob("*/snapshot.json")
    assert json.loads(snapshot.read_text())["dirty"] is True
    assert "+VERSION = 2" in (snapshot.parent / "code.diff").read_text()
    # Without a snapshot: the package is in the folder in which the command was typed.
    submit("seed=1")
    (other,) = set(run_folders(outputs)) - {folder}
    assert "this is version 3" in output_of_job(other)

    # Typed in another folder, whose code it is not.
    rejected = lab.runs("retry", outputs, "--all", LAUNCHER_KEY=str(tmp_path / "another-key"))
    assert rejected.returncode == 2, rejected.stderr
    assert "only the stored configuration" in rejected.stderr
    retried = lab.runs("retry", outputs, "--all")
    assert retried.returncode == 0, retried.stderr
    assert f"SLURM job {job_of(folder)}, {folder}" in retried.stdout
    assert "this is version 2" in output_of_job(folder)
    assert "this is version 3" in output_of_job(other)


def test_a_job_that_depends_on_a_run_evaluates_what_the_run_has_saved(cluster, tmp_path):
    """It is submitted before there is a checkpoint."""
    lab, words = cluster, [*experiment(tmp_path, steps=20), *QUICK, "dispatch=slurm"]
    assert lab.launcher(*words, *HELD).returncode == 0
    (folder,) = run_folders(tmp_path)
    dependency = f'dispatch.sbatch={{dependency: "afterok:{job_of(folder)}"}}'
    done = lab.launcher(*words, "job=evaluate", dependency)
    assert done.returncode == 0 and not (folder / "checkpoints").exists(), done.stderr
    lab.run("scontrol", "release", job_of(folder))
    evaluations = folder / "evaluations.jsonl"
    wait_for(evaluations.exists, "the evaluation")
    (line,) = map(json.loads, evaluations.read_text().splitlines())
    assert line["step"] == 20 and line["val/loss"] == metrics(tmp_path)[-1]["val/loss"]
