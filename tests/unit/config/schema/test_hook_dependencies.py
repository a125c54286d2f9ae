"""Hooks that have no effect without another one."""

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

import launcher
from launcher.config.compose.composer import compose
from launcher.config.options import main_folder, options, own_option
from launcher.config.schema.checks import FOLLOWING
from launcher.config.schema.hook_dependencies import metric_issues, need_issues, providers
from launcher.config.tree import pick
from launcher.hooks.base import BaseHook
from launcher.hooks.early_stopping import EarlyStoppingHook
from support.composition import run_of

PACKAGE = Path(launcher.__file__).parent
DEFAULT = own_option("hooks", "default")["defaults"]
LOGGED_GROUPS = sorted(name[:-1] for name in providers() if name.endswith("/"))
HOOKS = sorted({*options([main_folder()], "hooks")} - {"default"})
EVALUATION = {"_target_": "launcher.hooks.evaluation.EvaluationHook"}
FUNCTIONS = {"_target_": "launcher.hooks.functions.FunctionHook"}
BY_METRIC = {
    "scheduler": {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau", "metric": "val/loss"}
}


class OwnHook(BaseHook):
    needs: ClassVar = {"name=first*": "checkpointing", "size=3": "evaluation"}

    def __init__(self, name: str = "first one", size: int = 0):
        pass


class Derived(EarlyStoppingHook):
    pass


OWN = {"_target_": f"{__name__}.OwnHook"}
DERIVED = {"_target_": f"{__name__}.Derived"}


@pytest.fixture(scope="module")
def composed():
    """With all hooks that there are."""
    words = ["model=mlp", "data=digits", "run.name=a", f"hooks=[{','.join(HOOKS)}]"]
    return run_of(compose(words)).plain


def nodes(composed: dict[str, Any], names: str, **changes: Any) -> list[Any]:
    """The hooks, trackers and schedule of a configuration with these hooks and changes."""
    chosen = [each for name in names.split() for each in (DEFAULT if name == "default" else [name])]
    hooks = {name: composed["hooks"][name] for name in chosen} | changes.pop("hooks", {})
    for key, value in changes.pop("values", {}).items():
        hook, _, name = key.partition(".")
        hooks[hook] = hooks[hook] | {name: value}
    return pick(composed | {"hooks": hooks} | changes, FOLLOWING)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_alone_works_or_is_rejected_with_what_to_add(composed, name):
    found = list(map(str, need_issues(*nodes(composed, name))))
    if name not in ("early_stopping", "ema", "export"):
        assert found == []
        return
    [message] = found
    assert message.startswith(f"hooks.{name}: needs hooks.")
    assert "which is missing; add default to hooks=[...]." in message
    assert not list(need_issues(*nodes(composed, f"default {name}")))


TRAIN_LOSS = {"values": {"early_stopping.metric": "train/loss"}}
EMA = {"values": {"ema.evaluate": True}}
BY_TRAIN_LOSS = {"values": {"checkpointing.best_metric": "train/loss"}}


def mine(node: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"hooks": {"mine": node | settings}}


@pytest.mark.parametrize(("names", "changes", "expected"), [
    ("logging early_stopping", TRAIN_LOSS, None),
    ("evaluation early_stopping", {}, None),
    ("early_stopping", TRAIN_LOSS, "hooks.logging (metric=train/loss)"),
    ("early_stopping logging", {}, "add evaluation to hooks=[...]."),
    ("default export", {"values": {"export.weights": "ema"}}, "add ema to hooks=[...]."),
    ("early_stopping", {"hooks": {"measured": EVALUATION}}, None),
    ("early_stopping", mine(OWN, name="second"), None),
    ("early_stopping", {"tracker": {"mine": OWN | {"name": "second"}}}, None),
    ("early_stopping", mine(FUNCTIONS), None),
    ("", mine(DERIVED), "hooks.mine: needs hooks.evaluation (metric=val/loss)"),
    ("", mine(OWN), "hooks.mine: needs hooks.checkpointing (name=first one)"),
    ("", mine(OWN, name="second"), None),
    ("", mine(OWN, name="second", size=3), "hooks.mine: needs hooks.evaluation (size=3)"),
    ("", mine({"_target_": "nothing.there.Hook"}), None),
    ("", mine({"_target_": "print"}), None),
    ("evaluation ema", EMA, None),
    ("checkpointing ema", EMA, "hooks.ema: needs hooks.evaluation (evaluate=true)"),
    ("checkpointing ema", {}, None),
    ("", BY_METRIC, "scheduler: needs hooks.evaluation (metric=val/loss)"),
    ("evaluation", BY_METRIC, None),
    ("checkpointing", BY_TRAIN_LOSS, "hooks.logging (best_metric="),
])  # fmt: skip
def test_needs_of_a_hook_are_reported(composed, names, changes, expected):
    found = list(map(str, need_issues(*nodes(composed, names, **changes))))
    assert (len(found) == 1 and expected in found[0]) if expected else found == [], found


@pytest.mark.parametrize("key", ["checkpointing.best_metric", "early_stopping.metric", "scheduler"])
@pytest.mark.parametrize(
    ("metric", "extra", "is_known"),
    [
        ("f1", {}, False),
        ("val_loss", {}, False),
        ("mine/loss", {}, False),
        ("mine/loss", {"hooks": {"mine": FUNCTIONS}}, True),
        ("mine/loss", {"tracker": {"mine": OWN | {"name": "second"}}}, True),
        *[(f"{group}/x", {}, True) for group in LOGGED_GROUPS],
    ],
)
def test_a_metric_that_no_hook_logs_is_rejected_before_training(
    composed, key, metric, extra, is_known
):
    changes: dict[str, Any] = {"values": {key: metric}}
    if key == "scheduler":
        changes = {"scheduler": BY_METRIC["scheduler"] | {"metric": metric}}
    names = "default early_stopping"
    found = list(map(str, metric_issues(*nodes(composed, names, **changes, **extra))))
    path = "scheduler.metric" if key == "scheduler" else f"hooks.{key}"
    text = f"no hook logs it; use a name of {'/, '.join(LOGGED_GROUPS)}/, e.g. val/loss."
    assert found == ([] if is_known else [f"{path}='{metric}': {text}"])


def test_the_groups_that_hooks_log_are_those_in_their_source():
    source = "".join(path.read_text() for path in (PACKAGE / "hooks").glob("*.py"))
    logged = re.findall(r"trainer\.log\(\s*\{\"(\w+)\"", source)
    # The evaluation logs the name of the split.
    assert {*logged, "val"} == set(LOGGED_GROUPS)
