"""Settings of a search that do not fit each other."""

from functools import cache
from typing import Any

import pytest

from launcher.dispatch.local import LocalDispatch
from launcher.dispatch.slurm import SlurmDispatch
from launcher.errors import ConfigError
from launcher.search.study_settings import settings_of
from support.composition import composed, validate


@cache
def default() -> dict[str, Any]:
    return validate(composed([]))


def settings(**keys: Any) -> Any:
    config = default()
    for name, node in (("trainer", {"max_epochs": None}), ("hooks", {}), ("dispatch", {})):
        config = config | {name: config[name] | node | keys.pop(name, {})}
    return settings_of(config | {"hpo": config["hpo"] | keys})


def test_the_direction_follows_the_objective():
    assert (settings().objective, settings().direction) == ("val/loss", "minimize")
    assert settings(objective="val/accuracy").mode == "max"
    assert settings(objective="val/x", direction="maximize").mode == "max"


class OwnSlurm(SlurmDispatch):
    pass


class OwnLocal(LocalDispatch):
    pass


@pytest.mark.parametrize(
    ("dispatch", "pruner"),
    [
        (LocalDispatch, "asha"),
        (SlurmDispatch, "median"),
        (OwnLocal, "asha"),
        (OwnSlurm, "median"),
    ],
)
def test_the_pruner_follows_where_trials_run(dispatch, pruner):
    node = {"_target_": f"{dispatch.__module__}.{dispatch.__qualname__}"}
    assert settings(pruner="auto", dispatch=node).pruner == pruner


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"objective": "val/x"}, "hpo.objective=val/x: "),
        ({"objective": "loss"}, "hpo.objective=loss: a metric has a group"),
        ({"pruner": "asha", "trainer": {"max_epochs": 2}}, "needs trainer.max_steps"),
        ({"pruner": "asha", "hooks": {"checkpointing": None}}, "keep hooks.checkpointing"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(keys, message):
    with pytest.raises(ConfigError, match=message):
        settings(**keys)
