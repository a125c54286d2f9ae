"""Sweeps: all jobs are checked first, then run one after the other."""

import sys
from pathlib import Path

import pytest

from support.projects import exit_code, write_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_project(tmp_path, package="sweep_package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["launcher"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    return tmp_path


def sweep(*overrides: str) -> int:
    return exit_code("--config-dir", "conf", "job=mine", "-m", *overrides)


def test_every_combination_runs_in_a_folder_of_its_own(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("seed=1,2", "optimizer.lr=0.1,0.2") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert len(lines) == 4
    assert lines[1].startswith("[1] gpt-text/") and lines[1].endswith(" seed=1 optimizer.lr=0.2: completed")
    assert len(list((project / "outputs" / "gpt-text").iterdir())) == 4
    assert [path.name for path in (project / "outputs").iterdir()] == ["gpt-text"]


def test_a_job_of_a_sweep_is_the_run_of_its_overrides_alone(project: Path) -> None:
    assert sweep("seed=1,2") == 0
    before = set((project / "outputs" / "gpt-text").iterdir())
    assert exit_code("--config-dir", "conf", "job=mine", "seed=2") == 0
    assert set((project / "outputs" / "gpt-text").iterdir()) == before


def test_a_failing_job_does_not_stop_the_others_and_is_reported_at_the_end(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    not_identity = "run.not_identity=[run,hydra]"
    assert sweep("job.outcome=crashes,exits,refuses,completes", not_identity) == 1
    printed = capsys.readouterr()
    states = [line.rpartition(": ")[2] for line in printed.out.splitlines() if line.startswith("[")]
    assert len(states) == 4 and states[-1] == "completed"
    table = printed.err.splitlines()[-4:]
    assert table[0] == "3 of 4 jobs failed:"
    assert "failed: ValueError: a bug" in table[1]
    assert "failed with exit code 1" in table[2]
    assert "failed with exit code 2" in table[3]


def test_the_line_of_a_failed_job_has_its_cause(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("model=mine", "job.outcome=cannot build") == 1
    assert "failed: RuntimeError: built" in capsys.readouterr().out.splitlines()[-1]


def test_a_signal_stops_the_sweep(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = ["job.outcome=completes,'is stopped',exits", "run.not_identity=[run,hydra]"]
    assert sweep(*outcomes) == 143
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert len(lines) == 2 and lines[1].endswith(": stopped, and 1 more not started")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["data.num_workers=0,1"], "data.num_workers: jobs 0 and 1 of the sweep are the same run, gpt-text/"),
        (["seed=1,1"], "remove one, or give each its own run.tag."),
        (["seed=1,2", "device=cpu,cuda"], "device: jobs 0 and 1 of the sweep are the same run"),
        (["seed=1,2,x"], "seed='x': should be a whole number"),
    ],
)
def test_nothing_starts_if_any_job_has_a_fault(
    overrides: list[str], sentence: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(*overrides) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err and "running" not in printed.out
    assert not (project / "outputs").exists()


def test_additions_and_deletions_are_swept_like_values(project: Path) -> None:
    assert sweep("model=mine", "model.width=1,2", "+model.depth=3", "~hooks.progress") == 0
    assert len(list((project / "outputs" / "mine-text").iterdir())) == 2


def test_hydras_own_launcher_and_sweeper_work_too(project: Path) -> None:
    assert sweep("seed=1,2", "hydra/launcher=basic", "hydra/sweeper=basic") == 0
    assert len(list((project / "outputs" / "gpt-text").iterdir())) == 2
