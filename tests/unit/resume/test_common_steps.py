"""The first steps in which two runs are the same run, without training either."""

import warnings
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from launcher.config.schema.matters_from import names_own_code
from launcher.errors import ConfigError
from launcher.optim import schedulers
from launcher.resume.common_steps import common_steps, obstacles

Node = dict[str, Any]
OURS, TORCH = "launcher.optim.schedulers.", "torch.optim.lr_scheduler."


def identity(steps: int = 100, schedule: Node | None = None, **nodes: Any) -> Node:
    schedule = schedule or {}
    if "_target_" not in schedule:
        schedule = {"_target_": f"{OURS}wsd", "warmup_steps": 5, "max_steps": steps} | schedule
    return {
        "seed": 0,
        "trainer": {"max_steps": steps},
        "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.3},
        "scheduler": schedule,
        **nodes,
    }


def mixture(*stages: Node, **settings: Any) -> Node:
    source = {"_target_": "launcher.data.digits.DigitsData", "weight": 1.0}
    sources = {"a": source, "b": source}
    node = {"_target_": "launcher.data.mixture.MixtureData", "batch_size": 8, "sources": sources}
    return {"data": node | {"stages": list(stages)} | settings}


def skipping(*steps: list[int]) -> Node:
    node = {"_target_": "launcher.data.digits.DigitsData", "batch_size": 8}
    return {"data": node | ({"skip": list(steps)} if steps else {})}


def hook(name: str, **settings: Any) -> Node:
    kind = "".join(map(str.title, name.split("_")))
    return {"hooks": {name: {"_target_": f"launcher.hooks.{name}.{kind}Hook", **settings}}}


def ema(**settings: Any) -> Node:
    return identity(**hook("ema", **settings))


CONSTANT = {"_target_": f"{OURS}constant"}
OWN = {"mine": {"_target_": "my.Hook"}}
CALLING = {"mine": {"_target_": "launcher.FunctionHook", "on_after_step": "my.function"}}
LATE = {"at": 400, "weights": {"a": 2.0}}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # The first step of a decay by a square root still has the full rate.
        (identity(), identity(200), 81),
        # The last step of a run is logged and saved in any case.
        (identity(50, CONSTANT), identity(80, CONSTANT), 49),
        (identity(), identity(seed=1), 0),
        (identity(), identity(optimizer={"_target_": "torch.optim.AdamW", "lr": 0.2}), 0),
        (identity(), identity(200, seed=1), 0),
        (identity(), identity(scheduler=None), 0),
        (identity(**mixture(LATE)), identity(**mixture(LATE | {"at": 404})), 50),
        (identity(**mixture(LATE)), identity(**mixture()), 50),
        (identity(**mixture(LATE)), identity(**mixture(LATE | {"weights": {"a": 3.0}})), 50),
        (identity(**mixture(LATE)), identity(**mixture(LATE, shuffle=False)), 0),
        (identity(**mixture()), identity(**mixture({"at": 40, "weights": {"a": 1.0}})), 99),
        (identity(**skipping()), identity(**skipping([20, 25])), 19),
        (identity(**skipping([20, 25])), identity(**skipping([20, 24])), 19),
        (identity(**skipping([20, 25])), identity(**skipping([40, 41], [20, 25])), 39),
        (identity(**skipping([20, 25], [9, 9])), identity(**skipping([9, 9], [20, 25])), 99),
        (ema(interval=9), ema(interval=9, start="initial"), 8),
        (ema(), ema(start="initial"), 0),
        (ema(start=20), ema(start=40), 20),
        (ema(), ema(start=40), 1),
        (ema(start=20, interval=9), ema(start=40, interval=9), 26),
        (ema(decay=0.9), ema(decay=0.8), 0),
        (ema(), identity(), 0),
        (identity(**hook("progress", interval=9)), identity(hooks={}), 99),
        (identity(**hook("checkpointing", interval=9)), identity(**hook("checkpointing")), 99),
        (
            identity(**hook("checkpointing", best_metric="val/loss")),
            identity(**hook("checkpointing", best_metric="train/loss")),
            0,  # Without lines.
        ),
        (identity(**hook("logging", interval=9)), identity(**hook("logging", interval=8)), 0),
        # Code of others is never called, and a hook may ask for the length of the run.
        (identity(schedule={"_target_": "my.own"}), identity(schedule={"_target_": "my.two"}), 0),
        (identity(schedule={"_target_": "my.own"}), identity(200, {"_target_": "my.own"}), 99),
        (identity(hooks=OWN), identity(200, hooks=OWN), 0),
        # After step 51 a hook sees the rate of the next step, which differs.
        (identity(hooks=OWN), identity(schedule={"decay_ratio": 0.5}, hooks=OWN), 50),
        (identity(hooks=CALLING), identity(200, hooks=CALLING), 0),
        (identity(hooks=CALLING), identity(schedule={"decay_ratio": 0.5}, hooks=CALLING), 50),
        (identity(hooks=CALLING), identity(seed=1, hooks=CALLING), 0),
    ],
)
def test_common_steps(one, other, expected):
    assert common_steps(one, other) == common_steps(other, one) == expected


PLATEAU = {"_target_": f"{TORCH}ReduceLROnPlateau", "metric": "val/loss", "patience": 2}
LINES = [
    {"step": 0, "val/loss": 9.0},
    {"step": 10, "val/loss": 2.0, "val/accuracy": 0.1},
    {"step": 20, "val/loss": 1.0, "val/accuracy": 0.2},
    {"step": 25, "train/loss": 1.0},
    {"step": 30, "val/loss": "nan", "val/accuracy": 0.2},
    {"step": 40, "val/loss": 0.99, "val/accuracy": 0.2},
    {"step": 50, "val/loss": 1.1, "val/accuracy": 0.3},
    {"step": 60, "val/loss": 1.2, "val/accuracy": 0.3},
    {"step": 65, "train/loss": 1.0},
]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"patience": 2}, {"patience": 3}, 59),
        ({"patience": 2, "min_delta": 0.1}, {"patience": 3}, 39),
        ({"patience": 3, "metric": "val/accuracy"}, {"patience": 3}, 65),
        ({"patience": 2, "metric": "val/accuracy"}, {"patience": 3}, 39),
        ({"patience": 5}, {"patience": 5, "mode": "max"}, 49),
        ({"patience": 5}, None, 65),
        ({"patience": 2}, None, 59),
    ],
)
def test_runs_that_stop_early_share_until_either_stops(one, other, expected):
    runs = [
        identity(**({"hooks": {}} if node is None else hook("early_stopping", **node)))
        for node in (one, other)
    ]
    assert common_steps(*runs, lambda: LINES) == expected
    assert common_steps(*reversed(runs), lambda: LINES) == expected
    assert common_steps(*runs) == common_steps(*runs, list) == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"patience": 1}, 59),
        ({"patience": 0}, 29),
        ({"factor": 0.5}, 65),
        ({"threshold": 0.1}, 39),
        ({"mode": "max"}, 0),
        ({"metric": "val/accuracy"}, 0),
        ({"_target_": f"{OURS}constant"}, 0),
    ],
)
def test_schedules_that_follow_a_metric_share_until_they_differ(change, expected):
    one, other = identity(schedule=PLATEAU), identity(schedule=PLATEAU | change)
    assert common_steps(one, other, lambda: LINES) == expected
    assert common_steps(other, one, lambda: LINES) == expected
    assert common_steps(one, other) == 0


def test_epochs_share_with_epochs_only():
    def run(steps: int, epochs: float | None) -> Node:
        trainer = {"max_steps": steps, "max_epochs": epochs}
        return identity(schedule={"max_steps": steps}) | {"trainer": trainer}

    assert common_steps(run(100, 1.0), run(200, 2.0)) == 81
    assert common_steps(run(100, None), run(200, 2.0)) == 0
    assert common_steps(run(100, None) | {"trainer": {"max_steps": None}}, run(100, 2.0)) == 0


STEPS = st.integers(2, 60)
RATIO = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])
LENGTH = st.integers(1, 20)


def node(kind: str, **settings: st.SearchStrategy[Any]) -> st.SearchStrategy[Node]:
    target = TORCH + kind if kind[0].isupper() else OURS + kind
    return st.fixed_dictionaries({"_target_": st.just(target), **settings})


WARM = {"max_steps": STEPS, "warmup_steps": st.integers(0, 5), "min_lr_ratio": RATIO}
DECAYS = st.sampled_from(["linear", "cosine", "sqrt"])
SCHEDULES = st.one_of(
    node("cosine", **WARM),
    node("linear", **WARM),
    node("constant"),
    node("constant_with_warmup", max_steps=STEPS, warmup_steps=st.integers(0, 5)),
    node("wsd", **WARM, decay_ratio=RATIO, decay=DECAYS),
    node("StepLR", step_size=LENGTH, gamma=RATIO),
    node("MultiStepLR", milestones=st.lists(LENGTH, max_size=3).map(sorted), gamma=RATIO),
    node("LinearLR", start_factor=st.just(0.5), total_iters=LENGTH),
    node("ConstantLR", factor=st.just(0.5), total_iters=LENGTH),
    node("ExponentialLR", gamma=RATIO),
    node("CosineAnnealingLR", T_max=LENGTH, eta_min=RATIO),
    node("CosineAnnealingWarmRestarts", T_0=LENGTH),
    node("PolynomialLR", total_iters=LENGTH),
    node("OneCycleLR", max_lr=st.just(0.3), total_steps=STEPS, three_phase=st.booleans()),
    node("CyclicLR", base_lr=st.just(0.1), max_lr=st.just(0.3), step_size_up=LENGTH),
)


def rates(schedule: Node, steps: int) -> list[tuple[object, ...]]:
    """Train nothing for some steps, and return the rate and the momentum of each."""
    name, arguments = schedule["_target_"].rpartition(".")[2], dict(schedule)
    del arguments["_target_"]
    module: Any = lr_scheduler if schedule["_target_"].startswith(TORCH) else schedulers
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule_of = getattr(module, name)(optimizer, **arguments)
    made: list[tuple[object, ...]] = []
    for _ in range(steps):
        group = optimizer.param_groups[0]
        made.append((group["lr"], group["betas"]))
        optimizer.step()
        schedule_of.step()
    return made


@settings(max_examples=50, deadline=None)
@given(SCHEDULES, st.data(), STEPS, STEPS)
def test_the_rates_of_common_steps_are_equal(one, data, steps, more):
    """Against a loop over both schedules, and exactly for schedules of one class."""
    kin = SCHEDULES.filter(lambda other: other["_target_"] == one["_target_"])
    other = data.draw(st.one_of(SCHEDULES, kin))
    last = min(steps, more) - 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            here, there = rates(one, last), rates(other, last)
    except (ConfigError, ValueError, ZeroDivisionError):
        assume(False)
    different = (step for step in range(last) if here[step] != there[step])
    expected = next(different, last)
    common = common_steps(identity(steps, scheduler=one), identity(more, scheduler=other))
    is_kin = one["_target_"] == other["_target_"]
    assert common == expected if is_kin else common in (0, expected)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"_target_": "my.Hook"}, True),
        ({"_target_": "launcher.FunctionHook", "on_log": "my.package.function"}, True),
        ({"_target_": "launcher.FunctionHook", "on_log": "my:function"}, True),
        ({"_target_": "launcher.FunctionHook", "on_log": ["launcher.f", {"a": "größe.f"}]}, True),
        ({"_target_": "launcher.FunctionHook", "on_log": "launcher.f"}, False),
        ({"_target_": "launcher.hooks.ema.EmaHook", "decay": 0.5, "start": "initial"}, False),
        ({"metric": "val/loss", "path": "checkpoints", "interval": "0.5epoch"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_code_of_the_user_is_found_wherever_a_hook_names_it(node, expected):
    assert names_own_code({"mine": node}) is expected


def test_the_keys_that_limit_the_common_steps_are_named():
    longer = identity(200, seed=1)
    assert obstacles(identity(), longer, 1) == {"seed": [1, 0]}
    assert obstacles(identity(), identity(200), 90) == {"scheduler.max_steps": [200, 100]}
    assert obstacles(identity(), identity(200), 81) == {}
