"""Trials as SLURM jobs, with a queue in this process: preempted, failed, cancelled, lost, adopted
and rejected ones."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.config.options import own_target
from launcher.config.run_config import from_stored
from launcher.dispatch.jobs import Job
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.runs.stored_run import StoredRun
from launcher.search.search import Search
from launcher.search.slurm_runner import SlurmRunner
from launcher.slurm import submission
from launcher.slurm.submission import read_frozen
from support.scripted_slurm import ScriptedQueue
from support.toy_trials import Killed, ToyRunner, composed, search

XS = (0.1, 0.25, 0.4, 0.6)
ENQUEUE = [{"x": x} for x in XS]


KILLS = [*(("squeue", number) for number in (1, 2, 3, 4, 6, 8)), ("sbatch", 1), ("sbatch", 2)]


class Cluster(ScriptedQueue):
    """Its jobs are toy trials.

    Args:
        ends: the exit code with which a job ends, by its x and the job's start; 143: it is
            preempted, and requeued.
    """

    def __init__(self, outputs: Path, ends: Callable[[float, int], int] = lambda x, start: 0):
        super().__init__(self.train)
        self.outputs = outputs
        self.toys, self.ends = ToyRunner(outputs, breaks=lambda number, start: self.code), ends
        self.code = 0

    def train(self, folder: RunFolder, start: int) -> bool:
        config = from_stored(*read_frozen(folder))
        self.code = self.ends(config.plain["x"], start)
        self.toys.start(0, config)
        return self.code == 143


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    return Cluster(tmp_path / "outputs").install(monkeypatch, tmp_path)


def study(outputs: Path, clock: Callable[[], float] = lambda: 0.0, **settings: Any) -> Search:
    def compose(overrides: list[str], number: int) -> Job:
        job = composed(overrides, number)
        values = {
            "run.resume": "auto",
            "run.dir": str(outputs / job.run),
            "job._target_": own_target("job", "train"),
            "trainer.max_steps": 0,
            "paths.outputs": str(outputs),
            "dispatch._target_": "launcher.dispatch.slurm.SlurmDispatch",
        }
        hydra = {"overrides": {"task": overrides}}
        return Job(replace(job.config.replace(values), hydra=hydra), number, overrides)

    lines: list[str] = []
    runner = SlurmRunner(outputs, "toy", lines.append, clock)
    runner.poll = 0.0
    keys = {"n_trials": 4, "parallel": 2, "first": ENQUEUE} | settings
    made = search(outputs, runner, compose=compose, say=lines.append, **keys)
    made.lines = lines  # type: ignore[attr-defined]
    return made


def listen(searched: Search, *acts: tuple[str, Callable[[], object]]) -> None:
    """Act once a line that is printed has the text."""

    def say(line: str) -> None:
        searched.lines.append(line)  # type: ignore[attr-defined]
        for text, act in acts:
            if text in line:
                act()

    searched.runner.say = searched.say = say  # type: ignore[attr-defined]


def kill() -> None:
    raise Killed


def statuses(searched: Search) -> list[str]:
    return [trial.status for trial in searched.trials]


def values(searched: Search) -> list[float]:
    return [trial.value for trial in searched.trials]


def local_values(folder: Path, **settings: Any) -> list[float]:
    undisturbed = search(folder, ToyRunner(folder), **{"n_trials": 4, "first": ENQUEUE} | settings)
    undisturbed.run()
    return values(undisturbed)


def test_a_preempted_trial_runs_still_and_ends_as_an_undisturbed_one(cluster, tmp_path):
    cluster.ends = lambda x, start: 143 if start < 3 else 0
    searched = study(cluster.outputs)
    searched.run()
    assert statuses(searched) == ["completed"] * 4
    assert values(searched) == local_values(tmp_path / "local")
    assert len(cluster.submitted) == len(set(cluster.submitted)) == 4, (
        "a preempted trial is not submitted again"
    )
    assert (cluster.most, cluster.arrays) == (2, 2)
    lines = [line.partition(" (")[0] for line in searched.lines if line.startswith("trial 0: ")]
    assert lines[1:-1] == [
        "trial 0: is pending as SLURM job 1_0",
        "trial 0: runs on node1 as SLURM job 1_0",
        "trial 0: was preempted at step 45; SLURM job 1_0 is pending",
        "trial 0: runs on node1 as SLURM job 1_0",
        "trial 0: was preempted at step 67; SLURM job 1_0 is pending",
        "trial 0: runs on node1 as SLURM job 1_0",
    ]


@pytest.mark.parametrize(("command", "tick"), KILLS)
def test_a_search_that_is_killed_adopts_its_jobs_and_submits_none_twice(
    cluster, tmp_path, monkeypatch, command, tick
):
    calls: Counter[str] = Counter()
    original = cluster.call

    def call(words: Any, timeout: float = 0) -> str:
        answer = original(words)
        calls[words[0]] += 1
        if calls[command] == tick and words[0] == command:
            raise Killed  # SLURM has done what it was asked for, and nobody reads its answer
        return answer

    monkeypatch.setattr("launcher.slurm.scheduler.call", call)
    with monkeypatch.context() as patch, suppress(Killed):
        # A process that is killed.
        patch.setattr(submission, "undone_on_failure", lambda folders: nullcontext())
        study(cluster.outputs).run()
    again = study(cluster.outputs)
    again.run()
    assert statuses(again) == ["completed"] * 4
    assert values(again) == local_values(tmp_path / "local")
    assert sorted(Counter(cluster.submitted).values()) == [1, 1, 1, 1]
    assert cluster.most <= 2


def test_a_trial_whose_job_fails_is_submitted_again_by_budget(cluster):
    seen = Counter[float]()

    def ends(x: float, start: int) -> int:
        seen[x] += 1
        return int(x == 0.1 or (x == 0.4 and seen[x] == 1))

    cluster.ends = ends
    searched = study(cluster.outputs)
    searched.run()
    assert statuses(searched) == ["failed", "completed", "completed", "completed"]
    assert seen == {0.1: 2, 0.25: 1, 0.4: 2, 0.6: 1}
    assert "trial 0: failed: a toy breaks; it starts again" in searched.lines


def test_halving_pauses_and_submits_the_same_run_again(cluster, tmp_path):
    enqueue = [{"x": x} for x in (0.31, 0.5, 0.6, 0.7)]
    searched = study(cluster.outputs, pruner="asha", parallel=1, first=enqueue)
    searched.run()
    assert [trial.step for trial in searched.trials] == [90, 10, 10, 10]
    assert values(searched) == local_values(tmp_path / "local", pruner="asha", first=enqueue)
    assert sorted(Counter(cluster.submitted).values()) == [1, 1, 1, 3]
    # The toys leave no checkpoint.
    assert sum("is being submitted: toy/" in line for line in searched.lines) == 6
    assert searched.runner.describe_start(10) == "is being submitted to resume at step 10"


def test_a_trial_below_the_others_is_cancelled(cluster):
    enqueue = [{"x": x} for x in (0.31, 0.32, 0.33, 0.8)]
    cluster.ends = lambda x, start: 143 if x == 0.8 else 0
    searched = study(
        cluster.outputs, pruner="median", n_startup_trials=2, parallel=1, first=enqueue
    )
    searched.run()
    assert statuses(searched) == ["completed", "completed", "completed", "pruned"]
    assert len(cluster.cancelled) == 1
    record = RunRecord(RunFolder(cluster.outputs / str(searched.trials[3].run)))
    assert (record.state, searched.trials[3].pruned) == ("cancelled", 10)


@pytest.mark.parametrize(
    "phase", ["is pending as SLURM job 1_1 (Priority)", "runs on node1 as SLURM job 1_1"]
)
def test_a_trial_that_somebody_cancels_counts_as_pruned(cluster, phase):
    searched = study(cluster.outputs, parallel=4)
    listen(searched, (f"trial 1: {phase}", lambda: cluster.cancel("1_1")))
    searched.run()
    assert statuses(searched) == ["completed", "pruned", "completed", "completed"]
    assert "trial 1: was cancelled at step 0; it counts as pruned" in searched.lines
    again = study(cluster.outputs)
    again.run()
    assert statuses(again) == statuses(searched)
    assert len(cluster.submitted) == 4


def test_trials_that_were_cancelled_without_a_search_are_taken_up_again(cluster):
    killed = study(cluster.outputs, parallel=4)
    listen(killed, ("runs on node1", kill))
    with pytest.raises(Killed):
        killed.run()
    for name, job in list(cluster.jobs.items()):
        RunRecord(job.folder).revise("cancelled", reason="the SLURM job was cancelled")
        cluster.cancelled.append(name)
        job.state, job.was_listed = "COMPLETING", False  # its run saves still
    del cluster.jobs["1_0"]
    again = study(cluster.outputs)
    again.run()
    assert statuses(again) == ["completed"] * 4


def test_a_job_that_vanishes_is_a_failure_after_some_looks(cluster):
    searched = study(cluster.outputs, n_trials=1)
    listen(searched, ("trial 0: runs on node1 as SLURM job 1", cluster.jobs.clear))
    searched.run()
    why = "trial 0: failed: SLURM job 1 left the queue without a reason; it starts again"
    assert why in searched.lines
    assert statuses(searched) == ["completed"]


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("BOOT_FAIL", "failed"),
        ("DEADLINE", "failed"),
        ("FAILED", "failed"),
        ("NODE_FAIL", "failed"),
        ("OUT_OF_MEMORY", "failed"),
        ("PREEMPTED", "was stopped by a signal at step 0"),
        ("TIMEOUT", "failed"),
    ],
)
def test_a_trial_whose_job_slurm_has_ended_is_submitted_again(cluster, state, outcome):
    """Only a person's cancellation prunes a trial."""
    searched = study(cluster.outputs, n_trials=1)
    ends = iter([lambda: cluster.lose("1", state)])
    listen(searched, ("runs on node1", lambda: next(ends, lambda: None)()))
    searched.run()
    if outcome == "failed":
        outcome = f"failed: SLURM ended job 1: {state}; it starts again"
    assert f"trial 0: {outcome}" in searched.lines
    assert statuses(searched) == ["completed"] and len(cluster.submitted) == 2


def test_the_first_rejection_ends_the_search_and_leaves_nothing(cluster):
    cluster.rejection = "invalid partition specified: nowhere"
    searched = study(cluster.outputs)
    with pytest.raises(ConfigError, match="dispatch=slurm: invalid partition specified: nowhere"):
        searched.run()
    searched.forget_unless_begun()
    assert [path for path in cluster.outputs.rglob("*") if path.is_file()] == []


def test_later_rejections_and_silence_are_waited_out(cluster):
    times = iter(range(0, 10_000, 10))
    searched = study(cluster.outputs, lambda: float(next(times)), parallel=1)

    rejected = "Not submitted yet: trial 1. dispatch=slurm: too many jobs"
    listen(
        searched,
        ("trial 0: completed", lambda: setattr(cluster, "rejection", "too many jobs")),
        ("Not submitted yet: trial 1.", lambda: setattr(cluster, "rejection", "")),
        ("trial 2: runs on node1 as SLURM job 3", lambda: setattr(cluster, "is_down", True)),
        ("SLURM does not answer", lambda: setattr(cluster, "is_down", False)),
    )
    searched.run()
    assert statuses(searched) == ["completed"] * 4
    assert sum(rejected in line for line in searched.lines) == 1
    assert searched.lines.count("SLURM does not answer; the search waits for it.") == 1


def test_the_jobs_of_a_search_that_ends_stay_in_the_queue(cluster):
    searched = study(cluster.outputs, parallel=4)
    listen(searched, ("runs on node1", kill))
    with pytest.raises(Killed):
        searched.run()
    assert len(cluster.jobs) == 4
    assert "Left in SLURM's queue: trial 0, trial 1, trial 2, trial 3." in searched.lines[-1]
    assert f"cancel run.sweep=toy --outputs={cluster.outputs} cancels them" in searched.lines[-1]
    assert StoredRun.read(cluster.outputs / str(searched.trials[0].run)).record["state"] == "queued"
