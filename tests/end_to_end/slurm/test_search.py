"""Jobs that wait for others, on a real cluster: a search for its trials, and runs for the run whose
first steps they share."""

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
    attempts_of,
    experiment,
    hurry,
    job_of,
    record_of,
    run_folders,
    steps_done,
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
    small_cluster, tmp_path
):
    """Killed in a terminal; then it is a job, which is preempted twice, first together with the
    trials."""
    lab, outputs, undisturbed = small_cluster, tmp_path / "outputs", tmp_path / "undisturbed"
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
    local = start("-m", "launcher", *alone)
    for number in (1, 2, 3):
        wait_for(lambda number=number: starts(outputs) == [number], f"start {number} of the search")
        preempted = {1: [job, *submitted.values()], 2: [job], 3: []}[number]
        for node in {lab.info(one)["NodeList"] for one in preempted}:
            lab.preempt(node)
    hurry(*run_folders(outputs))
    ended = lab.wait_until_ended(job)
    assert ended == "COMPLETED" and starts(outputs) == [3], log.read_text()
    assert "2 trials, 2 completed" in log.read_text()
    assert "is being submitted" not in log.read_text() and jobs(outputs) == submitted
    for folder in run_folders(outputs):
        outcomes = [attempt["outcome"] for attempt in attempts_of(folder)]
        assert (outcomes[0], outcomes[-1]) == ("preempted", "completed"), folder

    text, _ = local.communicate(timeout=MAX_WAIT_S)
    assert local.returncode == 0, text
    assert asked(outputs) == asked(undisturbed)
    assert best(outputs) == best(undisturbed)
    for folder in run_folders(undisturbed):
        assert metrics_of(outputs / folder.relative_to(undisturbed)) == metrics_of(folder)


WORDS = ["scheduler=wsd", "scheduler.warmup_steps=5", "-m", "scheduler.decay_ratio=0.1,0.2,0.3"]


def by_ratio(outputs):
    return {
        str(record_of(folder)["config"]["scheduler.decay_ratio"]): folder
        for folder in run_folders(outputs)
    }


def test_runs_wait_for_their_trunk_which_is_preempted_twice(small_cluster, tmp_path):
    lab, outputs, alone = small_cluster, tmp_path / "outputs", tmp_path / "alone"
    undisturbed = start("-m", "launcher", *experiment(alone, 60), *QUICK, *WORDS)
    words = [*experiment(outputs, 60), *WORDS, "run.share_prefix=true", "dispatch=slurm"]
    words.append("+tracker.pace.starts=2")
    done = lab.launcher(*words, "dispatch.partition=preempt")
    assert "3 runs, 180 steps; shared: 88 are trained" in done.stdout, done.stdout + done.stderr
    folders = by_ratio(outputs)
    trunk, leaves = folders["0.1"], [folders["0.2"], folders["0.3"]]
    job = job_of(trunk)
    for leaf in leaves:
        assert lab.info(job_of(leaf))["Dependency"].startswith(f"afterany:{job}(")
    hurry(*leaves)
    for number in (1, 2):
        wait_for(lambda number=number: len(attempts_of(trunk)) == number, f"start {number}")
        begun = attempts_of(trunk)[-1]["start_step"]
        wait_for(lambda begun=begun: steps_done(trunk) > begun + 2, "the trunk to train")
        lab.preempt(lab.info(job)["NodeList"])
    for folder in (trunk, *leaves):
        assert lab.wait_until_ended(job_of(folder)) == "COMPLETED"
    outcomes = [attempt["outcome"] for attempt in attempts_of(trunk)]
    assert outcomes == ["preempted", "preempted", "completed"]
    assert [attempts_of(leaf)[0]["start_step"] for leaf in leaves] == [49, 43]
    text, _ = undisturbed.communicate(timeout=MAX_WAIT_S)
    assert undisturbed.returncode == 0, text
    for ratio, folder in by_ratio(alone).items():
        assert metrics_of(folders[ratio]) == metrics_of(folder)
        for name in ("shard-00000.safetensors", "rank-00000.safetensors", "state.json"):
            file = Path("checkpoints", "latest", name)
            assert (folders[ratio] / file).read_bytes() == (folder / file).read_bytes()
    log = (folders["0.2"] / "logs" / "launcher.log").read_text()
    assert f"New run. Shares steps 0 to 49 with {trunk.name}." in log
