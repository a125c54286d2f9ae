"""Settings of a search that do not fit each other."""

from functools import cache
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.search.study_settings import SLURM, settings_of
from support.composition import composed, validate

SEVERAL = ["val/loss", "val/accuracy"]


@cache
def default() -> dict[str, Any]:
    return validate(composed([]))


def settings(**keys: Any) -> Any:
    config = default()
    for name, node in (("trainer", {"max_epochs": None}), ("hooks", {}), ("dispatch", {})):
        config = config | {name: config[name] | node | keys.pop(name, {})}
    return settings_of(config | {"hpo": config["hpo"] | keys})


def test_directions_and_value_follow_the_objectives() -> None:
    one = settings()
    assert (one.objectives, one.directions, one.value) == (("val/loss",), ("minimize",), "best")
    several = settings(objective=["val/accuracy", "val/loss"])
    assert (several.directions, several.value) == (("maximize", "minimize"), "last")
    assert settings(objective="val/x", direction="maximize").mode == "max"


def test_the_pruner_follows_where_trials_run() -> None:
    for keys, pruner in (
        ({}, "asha"),
        ({"dispatch": {"_target_": SLURM}}, "median"),
        ({"objective": SEVERAL}, "none"),
    ):
        assert settings(pruner="auto", **keys).pruner == pruner


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"objective": "val/x"}, "hpo.objective=val/x: "),
        ({"objective": []}, r"hpo.objective=\[\]: should be one or several"),
        ({"objective": "loss"}, "hpo.objective=loss: a metric has a group"),
        ({"direction": "up"}, "hpo.direction='up': should be one of auto, minimize, maximize"),
        ({"direction": ["minimize", "minimize"]}, "hpo.direction=.*: should be one of"),
        ({"objective": SEVERAL, "pruner": "asha"}, "hpo.pruner=asha: needs one objective"),
        ({"objective": SEVERAL, "value": "best"}, "hpo.value=best: needs one objective"),
        ({"pruner": "asha", "trainer": {"max_epochs": 2}}, "needs trainer.max_steps"),
        ({"pruner": "asha", "hooks": {"checkpointing": None}}, "keep hooks.checkpointing"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**keys)
