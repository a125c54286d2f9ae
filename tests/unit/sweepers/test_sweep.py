"""`-m hydra/sweeper=optuna`: a command line that cannot be searched is one sentence, and nothing is written."""

from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.sweepers.sweep import locked
from support.projects import exit_code

LR = "optimizer.lr=tag(log,interval(1e-4,1e-1))"


def search(*overrides: str) -> int:
    return exit_code("-m", "hydra/sweeper=optuna", "model=mlp", "data=digits", "device=cpu", *overrides)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([], "hydra/sweeper=optuna: there is nothing to search; give a key a range"),
        ([LR, "hpo.sampler=tp"], "hpo.sampler='tp': should be one of tpe, random"),
        ([LR, "hpo.samplr=tpe"], "did you mean hpo.sampler"),
        (["optimizer.lrr=interval(0,1)"], "did you mean optimizer.lr"),
        (["+optimizer.lrr=interval(0,1)"], "optimizer.lrr=0.5: adamw takes no lrr; did you mean optimizer.lr?"),
        ([LR, "optimizr=adamw"], "did you mean optimizer=adamw?"),
        (["optimizer.lr=interval(1,0)"], "should be a range from a number to a larger one"),
        ([LR, "hpo.sampler=grid"], "hpo.sampler=grid: optimizer.lr has no list of values"),
        ([LR, "+hpo.sampler_options.nope=1"], "hpo.sampler_options: "),
        ([LR, "hpo.pruner=asha", "hpo.min_steps=5"], "hpo.min_steps=5: val/loss is first logged at step 100"),
        ([LR, "hpo.enqueue=[{optimizer.l:0.1}]"], "hpo.enqueue: optimizer.l is not in the search space"),
        ([LR, "hpo.name=../x"], "hpo.name='../x': should be a valid folder name"),
        ([LR, "paths.outputs=/proc/x"], "paths.outputs: /proc/x cannot be created"),
        ([LR, "dispatch=slurm"], "hydra/sweeper=optuna: SlurmDispatch is not supported"),
    ],
)
def test_a_bad_command_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    overrides: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert search(*overrides) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert len(printed.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_search_without_a_trial_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "optimizer.lr=interval(0.1,0.2)"
    assert search(name, "hpo.timeout=1e-9") == 1  # the time is over before the first trial
    assert "No trial has completed." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_second_search_of_a_study_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path / "study"), pytest.raises(ConfigError, match="study is being searched by process"):
        locked(tmp_path / "study").__enter__()
