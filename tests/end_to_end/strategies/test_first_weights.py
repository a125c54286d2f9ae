"""A run starts with the same weights under every strategy, also those that only a module's
constructor knows."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.ranks import Task, together

LAYOUTS = {
    1: {"none": ["strategy=none"]},
    2: {
        "ddp": ["strategy=ddp"],
        "fsdp": ["strategy=fsdp"],
        "host": ["strategy=fsdp", "strategy.init=host"],
    },
}
if find_spec("deepspeed"):
    LAYOUTS[2]["zero 3"] = ["strategy=deepspeed", "strategy.zero_stage=3"]
MODULES = ("Loaded", "Tied", "Scaled", "Counting")
"""Modules of `support.modules`."""


def modules(layout: str) -> tuple[str, ...]:
    return {"ddp": (), "zero 3": ("Loaded", "Tied")}.get(layout, MODULES)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By number of ranks, name of a layout, and model."""
    folder = tmp_path_factory.mktemp("weights")
    results: dict[tuple[int, str, str], list[Any]] = {}
    for ranks, layouts in LAYOUTS.items():
        tasks: dict[tuple[int, str, str], Task] = {}
        for name, overrides in layouts.items():
            for module in modules(name):
                tasks[ranks, name, module] = first_step(
                    folder / f"{ranks} {name} {module}", overrides, module
                )
            if "zero" not in name:
                tasks[ranks, name, "gpt"] = "initial_weights", {"overrides": overrides}
                tasks[ranks, name, "mlp"] = "initial_weights", {"overrides": [*overrides, "digits"]}
        results |= zip(
            tasks, together(ranks, folder / str(ranks), list(tasks.values())), strict=True
        )
    return results


def first_step(folder: Path, overrides: list[str], module: str) -> Task:
    overrides = [
        *overrides,
        "digits",
        "model=supervised",
        f"model.module._target_=support.modules.{module}",
    ]
    return "train", {
        "folder": str(folder),
        "overrides": [*overrides, "trainer.max_steps=1", "scheduler.max_steps=9"],
    }


@pytest.mark.parametrize("model", ["gpt", "mlp"])
def test_weights_set_by_init_weights(results, model):
    expected = results[1, "none", model][0]
    for ranks, name in [(2, "ddp"), (2, "fsdp"), (2, "host")]:
        main, *others = results[ranks, name, model]
        assert main["weights"] == expected["weights"]
        assert main["next"] == expected["next"], "its next random number is that of one rank alone"
        assert all(other["buffers"] == main["buffers"] for other in others)
        assert all(other["next"] != main["next"] for other in others), "ranks draw the same dropout"


@pytest.mark.parametrize("module", MODULES)
def test_weights_set_by_a_constructor(results, module):
    expected = results[1, "none", module][0]
    for ranks, layouts in LAYOUTS.items():
        for name in (name for name in layouts if module in modules(name)):
            for key in ("losses", "norms"):
                assert results[ranks, name, module][0][key] == pytest.approx(
                    expected[key], rel=1e-5
                ), (ranks, name)
