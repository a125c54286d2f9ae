"""A plain module is called for nothing that it does not declare."""

from typing import Any

import pytest
import torch
from torch import nn

from launcher import Model
from launcher.config.run_config import RunConfig
from launcher.errors import ConfigError
from launcher.hooks.evaluation_mode import in_evaluation
from launcher.models.declared import METHODS, check_declared, declared_method, is_language_model
from launcher.models.supervised import Supervised
from launcher.optim.groups import hidden_matrices
from launcher.rundir.folder import RunFolder
from launcher.strategies.initial_weights import build, outline
from launcher.strategies.shard_units import shard_units
from launcher.train.build import build_trainer
from support.composition import run_of
from support.foreign import Foreign

NAMES = sorted({name for name in vars(Model) if not name.startswith("_")} | METHODS.keys())
NAMES.remove("forward")


def takes_more(self: nn.Module, first: int, second: int) -> None:
    raise AssertionError("it is not for Launcher")


def with_property(name: str) -> type[Foreign]:
    return type("WithProperty", (Foreign,), {name: property(lambda self: 3)})


def with_attribute(value: Any, name: str) -> Foreign:
    model = Foreign()
    setattr(model, name, value)
    return model


def with_buffer(name: str) -> Foreign:
    model = Foreign()
    model.register_buffer(name, torch.ones(3))
    return model


FORMS = {
    "a number": lambda name: with_attribute(3, name),
    "a tensor": lambda name: with_attribute(torch.ones(3), name),
    "a buffer": with_buffer,
    "a parameter": lambda name: with_attribute(nn.Parameter(torch.ones(3)), name),
    "a submodule": lambda name: with_attribute(nn.Linear(2, 2), name),
    "a property": lambda name: with_property(name)(),
    "a method": lambda name: type("Own", (Foreign,), {name: takes_more})(),
}


def use(model: nn.Module) -> None:
    """Do all that Launcher does with a model's own attributes."""
    check_declared(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = build(lambda: model, torch.device("cpu"))
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert shard_units(model) == []
    assert len(hidden_matrices(model)) >= 1
    assert not is_language_model(model)
    own = dict(vars(model))
    with in_evaluation(model, needs_outputs=False):
        assert vars(model).get("needs_outputs") is own.get("needs_outputs")
    assert vars(model).keys() == own.keys()
    assert all(declared_method(model, name) is None for name in METHODS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
def test_a_name_of_the_interface_means_nothing_in_a_plain_module(form, name):
    model = FORMS[form](name)
    if form == "a method" and name in METHODS:
        ways = rf'derive it from launcher\.Model, or .* launcher_methods = \("{name}",\), or'
        with pytest.raises(ConfigError, match=rf"^model: Own has a method {name}, .*{ways}"):
            use(model)
        type(model).launcher_methods = ()  # type: ignore[attr-defined]
    use(model)


def run(folder: Any, *overrides: str) -> RunConfig:
    words = ["data=digits", "trainer.max_steps=2", "device=cpu", "hooks=[]"]
    return run_of([*words, *overrides, f"paths.outputs={folder}"])


@pytest.mark.parametrize("name", ["Counted", "Numbered"])
def test_a_run_asks_only_what_is_declared(tmp_path, name):
    config = run(tmp_path, "~model", f"+model._target_=support.foreign.{name}")
    trainer = build_trainer(config, RunFolder(tmp_path))
    assert trainer.num_targets((torch.ones(4, 64),)) == (4 if name == "Counted" else None)


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ("num_targets", "should be a tuple of some of init_weights, num_targets"),
        (("num_target",), "should be a tuple of some of init_weights, num_targets"),
        (("shard_units",), "Wrong.shard_units should be a method; there is none"),
        (("init_weights",), "Wrong.init_weights should be a method; it is an int"),
        (("num_targets",), r"Wrong.num_targets: missing a required argument: 'second'"),
    ],
)
def test_a_declaration_is_checked(declared, problem):
    members = {"launcher_methods": declared, "init_weights": 3, "num_targets": takes_more}
    model = type("Wrong", (Foreign,), members)()
    with pytest.raises(ConfigError, match=problem):
        check_declared(model)


class Drawn(nn.Linear):
    """A layer that loads weights, and has a method that would draw them anew."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        nn.init.constant_(self.weight, 0.25)

    def init_weights(self) -> None:
        nn.init.normal_(self.weight)


class DrawnAnew(Drawn):
    launcher_methods = ("init_weights",)


class Kept(Drawn):
    launcher_methods = ()


def test_the_same_holds_one_level_down():
    with pytest.raises(
        ConfigError, match=r"^model\.module: Drawn has a method init_weights, .*give"
    ):
        Supervised(Drawn())
    kept, drawn = Supervised(Kept()), Supervised(DrawnAnew())
    for model in (kept, drawn):
        build(lambda model=model: model, torch.device("cpu"))
    assert (kept.module.weight == 0.25).all()
    assert not (drawn.module.weight == 0.25).any()


def test_the_meta_device_is_for_weights_that_init_weights_makes():
    assert outline(lambda: Supervised(DrawnAnew())) is not None
    assert outline(lambda: Supervised(Kept())) is None
    assert outline(Foreign) is None
