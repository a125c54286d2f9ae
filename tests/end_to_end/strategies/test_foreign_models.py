"""Models that know nothing of Launcher, under each strategy: what their forward pass changes, and
complex weights."""

from importlib.util import find_spec

import pytest

from support.ranks import Task, by_name, task
from support.reloading import stored

STRATEGIES = {
    "ddp": ["strategy=ddp"],
    "fsdp": ["strategy=fsdp"],
    "units": ["strategy=fsdp", "strategy.min_params=100"],
}
GATHERING = {"fsdp", "units"}
"""They drop a change of a gathered copy, also of a frozen parameter."""
if find_spec("deepspeed"):
    STRATEGIES |= {
        "zero 2": ["strategy=deepspeed"],
        "zero 3": [
            "strategy=deepspeed",
            "strategy.zero_stage=3",
            "strategy.stage3_param_persistence_threshold=0",
        ],
    }
    GATHERING |= {"zero 3"}
CHANGES = {
    "Foreign": ("", set()),
    "Renormed": ("table.weight", set(STRATEGIES)),
    "RenormedByHand": ("table", set(STRATEGIES)),
    # The layer of `Momentum` is a unit, so the forward pass changes the shards.
    "Momentum": ("slow.weight", GATHERING - {"units"}),
    "FrozenRenormed": ("table.weight", GATHERING),
}
"""The parameter that the forward pass changes, and the strategies that reject it."""
LANES = ["trainer.lanes=2", "data.batch_size=8"]
FEW = ["trainer.max_steps=2", "scheduler.max_steps=9"]


def words(name: str, *overrides: str) -> list[str]:
    return ["digits", "~model", f"+model._target_=support.foreign.{name}", *FEW, *overrides]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """By what was tried: each rank's result."""
    folder = tmp_path_factory.mktemp("foreign")
    pair: dict[object, Task] = {}
    for layout, options in STRATEGIES.items():
        for name in CHANGES:
            place = folder / layout / name
            pair[layout, name] = task("rejected_by", place, *words(name, *options))
    compiled = words("Renormed", *STRATEGIES["fsdp"], "trainer.compile={backend:aot_eager}")
    pair["compiled"] = task("rejected_by", folder / "compiled", *compiled)
    alone: dict[object, Task] = {}
    for name in CHANGES:
        alone["lanes", name] = task("rejected_by", folder / "lanes" / name, *words(name, *LANES))
        alone["none", name] = task("rejected_by", folder / "none" / name, *words(name))
    spectral = words("Spectral")
    alone["none", "Spectral"] = task("train", folder / "spectral-none", *spectral)
    pair["ddp", "Spectral"] = task("train", folder / "spectral-ddp", *spectral, "strategy=ddp")
    for tasks, layout in ((alone, "none"), (pair, "ddp")):
        options = [*spectral, *LANES, "hooks=[checkpointing,ema]", f"strategy={layout}"]
        place = folder / f"lanes-{layout}" / "name" / "id"
        tasks["spectral lanes", layout] = task("train", place, *options)
    results = by_name(folder, (1, alone), (2, pair))
    tensors = {
        layout: stored(str(folder / f"lanes-{layout}" / "name" / "id"))["tensors"]
        for layout in ("none", "ddp")
    }
    return results[0] | results[1] | {"tensors": tensors}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("layout", [*STRATEGIES, "lanes", "none"])
def test_a_forward_pass_that_changes_a_copy_is_rejected(done, layout, name):
    parameter, layouts = CHANGES[name]
    for messages in done[layout, name]:
        if layout == "lanes" and name in ("Momentum", "FrozenRenormed"):
            (message,) = messages
            assert f"changes the model's frozen parameter {parameter}" in message
        elif layout in layouts or (layout == "lanes" and parameter):
            (message,) = messages
            assert f"the forward pass changes the parameter {parameter} itself" in message
        else:
            assert messages == []


def test_max_norm_is_rejected_in_a_compiled_model_that_is_sharded(done):
    for messages in done["compiled"]:
        (message,) = messages
        assert "the forward pass changes the parameter table.weight itself" in message


def test_complex_weights_train_under_ddp(done):
    expected = done["none", "Spectral"][0]
    for rank in done["ddp", "Spectral"]:
        for key in ("losses", "norms"):
            assert rank[key] == pytest.approx(expected[key], rel=1e-5)


def test_complex_weights_have_the_same_bits_with_lanes(done):
    tensors = done["tensors"]
    assert tensors["ddp"] == tensors["none"]
    assert {"model/filter", "ema/0.999/filter"} <= tensors["none"].keys()
    (alone,), pair = done["spectral lanes", "none"], done["spectral lanes", "ddp"]
    assert all(rank["norms"] == alone["norms"] for rank in pair)
    plain = done["none", "Spectral"][0]["norms"]
    assert len(plain) == len(alone["norms"])
