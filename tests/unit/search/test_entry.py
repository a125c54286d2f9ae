"""`-m hydra/sweeper=optuna`: a command line that cannot be searched is one sentence, and nothing is
written."""

import pytest
from omegaconf import OmegaConf
from optuna.distributions import FloatDistribution

from launcher.config.compose.overrides import normalize
from launcher.config.compose.session import loader, session
from launcher.errors import ConfigError
from launcher.rundir.lock import RunLock
from launcher.search.entry import StudyFolder
from launcher.search.search_space import read_space
from support.composition import composed
from support.projects import exit_code

pytestmark = pytest.mark.usefixtures("shared_groups")

LR = "optimizer.lr=tag(log,interval(1e-4,1e-1))"


def search(*overrides: str) -> int:
    return exit_code(
        "-m", "hydra/sweeper=optuna", "model=mlp", "data=digits", "device=cpu", *overrides
    )


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([LR, "+hpo.sampler_options.nope=1"], "hpo.sampler_options: "),
        (
            [LR, "job=lr_find"],
            "hydra/sweeper=optuna: trials train; use job=train, or remove hydra/sweeper.",
        ),
        (["hpo.space=5"], "hpo.space=5: should be a mapping of keys to ranges; e.g. hpo.space."),
        ([LR, "+hpo={1:2}"], "hpo.1=2: hpo takes no 1."),
        (["hpo.space.optimizer.lrr=1,2"], "no key optimizer.lrr; did you mean optimizer.lr"),
        (
            ["model.hidden_dim=interval(2,8)"],
            "model.hidden_dim=interval(2,8): should have whole numbers; use"
            " model.hidden_dim=int(interval(2,8)).",
        ),
        (["optimizer.lr=interval(-2,-1)"], "interval(-2,-1): with optimizer.lr=-1.5: should be a"),
        ([LR, "run.id=abc"], "optimizer.lr: trials with other values are the same run, mlp-digits"),
        ([LR, "device=cpu,auto"], "device: trials with other values are the same run"),
        ([LR, "trainer.pause_at=20"], "trainer.pause_at=20: a search decides it"),
        ([LR, "run.resume=never"], "run.resume=never: a search decides it"),
        ([LR, "dispatch._target_=builtins.dict"], "hydra/sweeper=optuna: dict is not supported"),
    ],
)
def test_a_bad_command_is_one_sentence(tmp_path, monkeypatch, capsys, overrides, sentence):
    monkeypatch.chdir(tmp_path)
    assert search(*overrides) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert len(printed.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "typed",
    [
        "hpo.space.optimizer.lr=tag(log,interval(1e-4,1e-1))",
        "hpo.space={optimizer:{lr:'tag(log,interval(1e-4,1e-1))'}}",
    ],
)
def test_ranges_of_the_settings_on_the_command_line(typed):
    config = composed([typed])
    with session(None):
        space, _ = read_space(
            loader(), [normalize(typed)], OmegaConf.to_container(config.hpo.space)
        )
    assert space == {"optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True)}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["dispatch=slurm", "hpo.parallel=2"], 2, "dispatch=slurm: squeue does not answer"),
        (["hpo.timeout=1e-9"], 1, "No trial has completed."),  # it is over before the first trial
        (
            [
                "hpo.timeout=1e-9",
                "run.note='choice(8,16)'",
                "hpo.space.model.hidden_dim=${run.note}",
            ],
            1,
            "No trial has completed.",
        ),
        (["hpo.space.model.hidden_dim=${oc.env:NOPE}"], 2, "has no variable NOPE; set it"),
    ],
)
def test_a_search_without_a_trial_leaves_nothing(
    tmp_path, monkeypatch, capsys, words, code, sentence
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert search(LR, *words) == code
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_second_search_of_a_study_is_rejected(tmp_path):
    study = StudyFolder(tmp_path / "study")
    with RunLock(study), pytest.raises(ConfigError, match=r"hpo.name='.*study': process"):
        RunLock(study).acquire()
