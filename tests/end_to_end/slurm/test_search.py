"""A hyperparameter search whose trials are jobs of a real cluster."""

import json
import os
import shlex
import signal
from pathlib import Path

from launcher.runs.stored_study import StoredStudy
from support import python
from support.lab import (
    MAX_WAIT_S,
    QUICK,
    ROOT,
    experiment,
    hurry,
    job_of,
    run_folders,
    wait_for,
    wait_for_step,
)
from support.runner import metrics_of, start

SEARCH = [
    "hydra/sweeper=optuna",
    "optimizer.lr=tag(log,interval(1e-4,1e-1))",
    "hpo.sampler=random",
    "hpo.n_trials=2",
    "hooks.evaluation.interval=40",
]
SLURM = [
    "hpo.parallel=2",
    "dispatch=slurm",
    "dispatch.partition=preempt",
    "tracker.pace.seconds=1",
    "+tracker.pace.starts=2",
]
"""The trials last until the second preemption, too."""


def jobs(outputs):
    return {folder.name: job_of(folder) for folder in run_folders(outputs)}


def asked(outputs):
    (study,) = outputs.glob("studies/*")
    return [(trial.number, trial.run, trial.sampled) for trial in StoredStudy.read(study).trials]


def best(outputs):
    (path,) = outputs.glob("studies/*/optimization_results.yaml")
    return path.read_text()


def starts(outputs):
    return [
        text.count('"restart":')
        for text in map(Path.read_text, outputs.glob("studies/*/restarts.json"))
    ]


def test_a_search_that_is_killed_and_preempted_with_its_trials_equals_an_undisturbed_one(
    cluster, tmp_path
):
    """Killed in a terminal; then it is a job, which is preempted twice, first together with the
    trials."""
    lab, outputs, undisturbed = cluster, tmp_path / "outputs", tmp_path / "undisturbed"
    command = ["-m", *experiment(outputs, steps=80), *SEARCH, *SLURM]
    killed = python.start("-m", "launcher", *command, env=lab.environment, cwd=ROOT)
    wait_for_step(outputs, step=1, runs=2)
    submitted = jobs(outputs)
    os.kill(killed.pid, signal.SIGKILL)
    killed.stdout.close()
    killed.wait()

    log = tmp_path / "search.log"
    script = shlex.join(["srun", str(lab.python), "-u", "-m", "launcher", *command])
    submit = "sbatch --parsable -p preempt --requeue --signal=USR2@60 --open-mode=append -o"
    job = lab.run(*submit.split(), str(log), "--wrap", script).strip()
    alone = ["-m", *experiment(undisturbed, steps=80), *SEARCH, *QUICK]
    local = start("-m", "launcher", *alone, jobs=2)
    for number in (1, 2, 3):
        wait_for(lambda number=number: starts(outputs) == [number], f"start {number} of the search")
        preempted = {1: [job, *submitted.values()], 2: [job], 3: []}[number]
        for node in {lab.info(one)["NodeList"] for one in preempted}:
            lab.preempt(node)
    hurry(*run_folders(outputs))
    ended = lab.wait_until_ended(job)
    assert ended == "COMPLETED" and starts(outputs) == [3], log.read_text()
    assert "2 trials, 2 completed" in log.read_text()
    assert "is being submitted" not in log.read_text() and jobs(outputs) == submitted, (
        log.read_text()
    )
    for folder in run_folders(outputs):
        attempts = json.loads((folder / "run.json").read_text())["attempts"]
        outcomes = [attempt["outcome"] for attempt in attempts]
        assert (outcomes[0], outcomes[-1]) == ("preempted", "completed"), folder

    text, _ = local.communicate(timeout=MAX_WAIT_S)
    assert local.returncode == 0, text
    assert asked(outputs) == asked(undisturbed)
    assert best(outputs) == best(undisturbed)
    for folder in run_folders(undisturbed):
        assert metrics_of(outputs / folder.relative_to(undisturbed)) == metrics_of(folder)
