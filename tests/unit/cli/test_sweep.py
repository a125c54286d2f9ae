"""Sweeps: all jobs are checked first, then run one after the other."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli import sweep_queue
from launcher.cli.sweep import show_ranking
from launcher.cli.sweep_queue import reason
from launcher.dispatch.jobs import JobResult
from launcher.jobs.train import TrainJob
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from support.projects import exit_code, write_project

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_groups")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_project(tmp_path_factory.mktemp("project"), package="sweep_package")


@pytest.fixture
def project(folder, tmp_path, monkeypatch):
    """An empty current folder of somebody who has a package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(folder)
    return tmp_path


@pytest.fixture
def sweep(project, folder):
    def sweep(*overrides: str) -> int:
        return exit_code("--config-dir", str(folder / "conf"), "job=mine", "-m", *overrides)

    return sweep


def test_every_combination_runs_in_a_folder_of_its_own(sweep, capsys):
    assert sweep("seed=1,2", "optimizer.lr=0.1,0.2") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("job")]
    assert len(lines) == 8
    assert lines[2].startswith("job 2/4 gpt-text/")
    assert lines[2].endswith(" seed=1 optimizer.lr=0.2: starts")
    assert lines[3] == lines[2].removesuffix("starts") + "completed"
    assert len(list(Path("outputs/gpt-text").iterdir())) == 4
    assert [path.name for path in Path("outputs").iterdir()] == ["gpt-text"]


def test_a_failing_job_does_not_stop_the_others_and_is_reported_at_the_end(sweep, capsys):
    identity_exclude = "run.identity_exclude=[run,hydra]"
    assert sweep("job.outcome=crashes,exits,rejects,completes", identity_exclude) == 1
    printed = capsys.readouterr()
    states = [
        line.rpartition(": ")[2] for line in printed.out.splitlines() if line.startswith("job")
    ]
    assert len(states) == 8 and states[-1] == "completed"
    assert "failed: ValueError: a bug\n" in printed.out
    table = printed.err.splitlines()[-4:]
    assert table[0] == "3 of 4 jobs failed:"
    assert "failed: ValueError: a bug" in table[1]
    assert "failed: RuntimeError: the code of the run called sys.exit(1)" in table[2]
    assert "rejected: data.files='x': is empty." in table[3]


class Job:
    """The part of a job that the ranking and the failures of a sweep read."""

    def __init__(self, folder: Path, best: float | None, outcome: str, metric: str = "val/loss"):
        self.config = SimpleNamespace(folder=RunFolder(folder), trains=True)
        record = RunRecord(RunFolder(folder).create())
        record.begin_attempt(start_step=0, max_steps=1, world_size=1, strategy="none")
        found = None if best is None else {"metric": metric, "value": best, "step": 1}
        record.end_attempt(
            outcome, end_step=1, reason=f"it {outcome}\nwith much detail", best=found
        )  # type: ignore[arg-type]


@pytest.mark.parametrize(("metric", "order"), [("val/loss", "bac"), ("val/accuracy", "abc")])
def test_the_runs_of_a_sweep_are_ranked(metric, order, tmp_path, capsys):
    jobs: Any = [
        Job(tmp_path / "gpt" / "a", 0.5, "completed", metric),
        Job(tmp_path / "gpt" / "b", 0.25, "completed", metric),
        Job(tmp_path / "gpt" / "c", None, "failed"),
    ]
    show_ranking(jobs)
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title == f"Ranked by {metric}:" and "".join(line.split()[1] for line in lines) == order
    show_ranking([*jobs, Job(tmp_path / "gpt" / "d", float("inf"), "completed", metric)])
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert "".join(line.split()[1] for line in lines) == order[:2] + "cd", "text in run.json"
    show_ranking(jobs[:1])
    assert capsys.readouterr().out == "", "one run needs no ranking"


class OwnTraining(TrainJob):
    pass


@pytest.mark.parametrize(
    ("more", "starts_them"),
    [
        ([], False),
        ([f"job._target_={__name__}.OwnTraining"], False),
        (["job.objective=val/loss"], True),  # a sweeper looks at the value
        (["+hydra.callbacks.mine._target_=hydra.experimental.callback.Callback"], True),
    ],
)
def test_no_job_starts_for_a_complete_run_unless_somebody_looks(
    project, monkeypatch, capsys, more, starts_them
):
    words = ["model=mlp", "data=digits", "trainer.max_steps=1", "-m", "seed=1,2", *more]
    started: list[Any] = []
    monkeypatch.setattr(sweep_queue, "start_run", started.append)
    exit_code(*words)
    assert len(started) == 2
    for config in started:
        folder = config.folder.create()
        checkpoint = folder.checkpoints / "step-00000001"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}")
        record = RunRecord(folder)
        record.begin_attempt(start_step=0, max_steps=1, world_size=1, strategy="none")
        record.data["checkpoint"] = 1
        record.end_attempt("completed", end_step=1)
        folder.metrics_path.write_text('{"step": 1, "val/loss": 0.5}\n')
    capsys.readouterr()
    assert exit_code(*words) == 0
    assert len(started) == (4 if starts_them else 2)
    printed = capsys.readouterr().out.splitlines()
    lines = [line.rpartition(": ")[2] for line in printed if line.startswith("job")]
    assert lines == (["starts", "completed"] if starts_them else ["completed"]) * 2


def test_a_rank_that_failed_elsewhere_gives_its_reason(tmp_path):
    job: Any = Job(tmp_path / "a", None, "failed")
    assert reason(job, JobResult(error=SystemExit(1))) == "failed: it failed"


def test_a_signal_stops_the_sweep(sweep, capsys):
    outcomes = ["job.outcome=completes,'is stopped',exits", "run.identity_exclude=[run,hydra]"]
    assert sweep(*outcomes) == 143
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "Stopped: 1 saved, 1 not started; the same command resumes them."


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["data.num_workers=0,1"],
            "data.num_workers: jobs 1 and 2 of the sweep are the same run, gpt-text/",
        ),
        (["seed=1,1"], "remove one, or give each its own run.tag."),
        (["seed=1,2", "run.id=mine"], "run.id=mine: jobs 1 and 2 of the sweep are the same run, "),
        (["model=mine,gpt", "+model.depth=3"], "takes no depth (job 2: model=gpt).\n"),
    ],
)
def test_sweep_starts_no_job_if_any_is_invalid(overrides, sentence, sweep, capsys):
    assert sweep(*overrides) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err and "running" not in printed.out
    assert not Path("outputs").exists()
