"""A hyperparameter search whose trials are jobs of a real cluster."""

import json
import os
import signal

from launcher.run.folder import RunFolder
from launcher.slurm.submission import JobNote
from support import python
from support.lab import LONGEST, QUICK, ROOT, experiment, run_folders, wait_for_step
from support.runner import ENVIRONMENT, metrics_of

SEARCH = [
    "hydra/sweeper=optuna",
    "optimizer.lr=tag(log,interval(1e-4,1e-1))",
    "hpo.sampler=random",
    "hpo.n_trials=2",
    "hooks.evaluation.interval=40",
]
SLURM = ["hpo.parallel=2", "dispatch=slurm", "dispatch.partition=preempt", "tracker.pace.seconds=1"]


def jobs(outputs):
    return {folder.name: JobNote.read(RunFolder(folder)).job_id for folder in run_folders(outputs)}


def asked(outputs):
    (path,) = outputs.glob("studies/*/trials.jsonl")
    return [(trial["number"], trial["run"], trial["params"]) for trial in map(json.loads, path.open())]


def test_a_study_of_preempted_trials_whose_search_is_killed_equals_an_undisturbed_one(cluster, tmp_path):
    lab, outputs, undisturbed = cluster, tmp_path / "outputs", tmp_path / "undisturbed"
    command = ["-m", *experiment(outputs, steps=80), *SEARCH, *SLURM]
    killed = python.start("-m", "launcher", *command, env=lab.environment, cwd=ROOT)
    wait_for_step(outputs, step=1, runs=2)
    submitted = jobs(outputs)
    for node in {lab.info(job)["NodeList"] for job in submitted.values()}:
        lab.preempt(node)
    os.kill(killed.pid, signal.SIGKILL)
    killed.stdout.close()
    killed.wait()

    local = ["-m", *experiment(undisturbed, steps=80), *SEARCH, *QUICK]
    process = python.start(
        *("-m", "launcher", *local), env=ENVIRONMENT, cwd=ROOT, children=("launcher.sweepers.trial", 2)
    )
    again = lab.launcher(*command)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "2 trials, 2 completed" in again.stdout
    assert "is being submitted" not in again.stdout and jobs(outputs) == submitted, again.stdout
    for folder in run_folders(outputs):
        outcomes = [attempt["outcome"] for attempt in json.loads((folder / "run.json").read_text())["attempts"]]
        assert (outcomes[0], outcomes[-1]) == ("preempted", "completed"), folder

    text, _ = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, text
    assert asked(outputs) == asked(undisturbed)
    for folder in run_folders(undisturbed):
        assert metrics_of(outputs / folder.relative_to(undisturbed)) == metrics_of(folder)
