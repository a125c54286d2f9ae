"""A run starts with the same weights under every strategy, also those that only a module's
constructor knows."""

from importlib.util import find_spec

import pytest

from support.ranks import Task, by_name, task

LAYOUTS = {
    "none": ["strategy=none"],
    "ddp": ["strategy=ddp"],
    "fsdp": ["strategy=fsdp"],
    "host": ["strategy=fsdp", "strategy.init=host"],
}
MODELS = {"gpt": [], "mlp": ["digits"]}
MODULES = {
    "Loaded": ["host"],
    "Tied": ["fsdp", "host"],
    "Scaled": ["fsdp", "host"],
    "Counting": ["host"],
}
"""Modules of `support.modules`, and their layouts on two ranks."""
if find_spec("deepspeed"):
    LAYOUTS["zero 3"] = ["strategy=deepspeed", "strategy.zero_stage=3"]
    MODULES = MODULES | {name: [*MODULES[name], "zero 3"] for name in ("Loaded", "Tied")}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By name of a layout, and model."""
    folder = tmp_path_factory.mktemp("weights")

    def tasks(layouts):
        made: dict[tuple[str, str], Task] = {}
        for layout in layouts:
            for name, overrides in MODELS.items() if layout != "zero 3" else ():
                words = [*LAYOUTS[layout], *overrides]
                made[layout, name] = "initial_weights", {"overrides": words}
            for name, of_module in MODULES.items():
                if layout in ("none", *of_module):
                    made[layout, name] = task(
                        "train", folder / layout / name, *LAYOUTS[layout], "digits",
                        "model=supervised", f"model.module._target_=support.modules.{name}",
                        "trainer.max_steps=1", "scheduler.max_steps=9",
                    )  # fmt: skip
        return made

    two = tasks([layout for layout in LAYOUTS if layout != "none"])
    alone, pair = by_name(folder, (1, tasks(["none"])), (2, two))
    return alone | pair


@pytest.mark.parametrize("model", MODELS)
def test_weights_set_by_init_weights(results, model):
    expected = results["none", model][0]
    for layout in ("ddp", "fsdp", "host"):
        main, other = results[layout, model]
        assert main["weights"] == expected["weights"]
        assert main["next"] == expected["next"], "its next random number is that of one rank alone"
        assert other["buffers"] == main["buffers"]
        assert other["next"] != main["next"], "ranks draw the same dropout"


@pytest.mark.parametrize(
    ("module", "layout"), [(name, layout) for name in MODULES for layout in MODULES[name]]
)
def test_weights_set_by_a_constructor(results, module, layout):
    for key in ("losses", "norms"):
        expected = results["none", module][0][key]
        assert results[layout, module][0][key] == pytest.approx(expected, rel=1e-5)
