"""Settings of a search that do not fit each other."""

from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.search.study_settings import settings_of
from support.composition import composed, validate


def settings(*overrides: str) -> Any:
    return settings_of(validate(composed(overrides)))


def test_directions_and_value_follow_the_objectives() -> None:
    default = settings()
    assert (default.objectives, default.directions, default.value) == (
        ("val/loss",),
        ("minimize",),
        "best",
    )
    several = settings("hpo.objective=[val/accuracy,val/loss]")
    assert (several.directions, several.value) == (("maximize", "minimize"), "last")
    assert settings("hpo.objective=val/x", "hpo.direction=maximize").mode == "max"


@pytest.mark.parametrize(
    ("overrides", "pruner"),
    [
        ([], "asha"),
        (["dispatch=slurm"], "median"),
        (["hpo.objective=[val/loss,val/accuracy]"], "none"),
    ],
)
def test_the_pruner_follows_where_trials_run(overrides: list[str], pruner: str) -> None:
    assert settings("hpo.pruner=auto", *overrides).pruner == pruner


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["hpo.objective=val/x"],
            "hpo.objective=val/x: the name does not show whether less or more is better",
        ),
        (["hpo.objective=[]"], r"hpo.objective=\[\]: should be one or several metrics"),
        (
            ["hpo.objective=loss"],
            "hpo.objective=loss: a metric has a group; e.g. val/loss or train/loss",
        ),
        (
            ["hpo.percentile=100"],
            "hpo.percentile=100: should be a number greater than 0 and less than 100",
        ),
        (
            ["hpo.direction=up"],
            "hpo.direction='up': should be one of auto, minimize, maximize for each objective",
        ),
        (
            ["hpo.direction=[minimize,minimize]"],
            "should be one of auto, minimize, maximize for each objective",
        ),
        (
            ["hpo.objective=[val/loss,val/accuracy]", "hpo.pruner=asha"],
            "hpo.pruner=asha: needs one objective",
        ),
        (
            ["hpo.objective=[val/loss,val/accuracy]", "hpo.value=best"],
            "hpo.value=best: needs one objective",
        ),
        (
            ["hpo.pruner=asha", "trainer.max_epochs=2"],
            "needs trainer.max_steps instead of trainer.max_epochs",
        ),
        (
            ["hpo.pruner=asha", "~hooks.checkpointing"],
            "a pause needs a checkpoint; keep hooks.checkpointing",
        ),
        (
            ["hpo.sampler=tp"],
            "hpo.sampler='tp': should be one of tpe, random, grid, qmc, gp, cmaes, nsgaii",
        ),
        (
            ["hpo.sampler=grid", "hpo.space_function=a.b"],
            "hpo.sampler=grid: has no hpo.space_function; use",
        ),
        (["hpo.n_trials=0"], "hpo.n_trials=0: should be a whole number greater than 0"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings(*overrides)
