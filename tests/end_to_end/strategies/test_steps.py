"""Events on one rank alone, and options: all ranks decide alike, and no number changes that should
not."""

import re
from typing import Any

import pytest
import torch

from support.ranks import together

FSDP, DDP, NONE = ["strategy=fsdp"], ["strategy=ddp"], ["strategy=none"]
COMPILED = ["trainer.compile={backend:aot_eager}"]  # the quickest that has a graph
SAME = {
    "recompute every 2nd": [*FSDP, "trainer.activation_checkpointing=2"],
    "keep gathered, prefetch": [*FSDP, "strategy.sharding=shard_grad_op", "strategy.prefetch=1"],
    "one unit": [*FSDP, "strategy.min_params=0"],
    "on the host": [*FSDP, "strategy.cpu_offload=true", "strategy.init=host"],
    "compiled": [*FSDP, "digits", *COMPILED],
}
"""Two ranks, bitwise identical with plain fsdp, dropout included."""
CLOSE = {
    "ddp recompute": [*DDP, "trainer.activation_checkpointing=full"],
    "ddp unused": [
        *DDP,
        "strategy.find_unused_parameters=true",
        "strategy.gradient_as_bucket_view=false",
    ],
    "ddp compiled": [*DDP, "digits", *COMPILED],
}
"""Two ranks, and to rounding what plain ddp gives."""
PLAIN = {
    "fsdp": FSDP,
    "ddp": DDP,
    "fsdp digits": [*FSDP, "digits"],
    "ddp digits": [*DDP, "digits"],
}
SCALER = ["precision=fp16", "precision.init_scale=1024"]
OVERFLOW = {
    "ddp retry": [*DDP, "trainer.max_non_finite_grad_retries=1"],
    "ddp scaler": [*DDP, *SCALER],
    "fsdp skip": FSDP,
    "no_shard scaler": [*FSDP, "strategy.sharding=no_shard", *SCALER],
}
PARTS = {
    "untied, sgd": ["model.tie_embeddings=false", "optimizer=sgd"],
    **({"muon": ["optimizer=muon"]} if hasattr(torch.optim, "Muon") else {}),
}
"""Other parts, under fsdp on two ranks and under none on one."""
UNUSUAL = {
    "plateau": [
        "scheduler=plateau",
        "scheduler.patience=0",
        "scheduler.factor=0.5",
        "+scheduler.threshold=0.999",  # no value is an improvement by so much
        "hooks=[checkpointing,evaluation]",
        "hooks.evaluation.interval=1",
    ],
}
"""A schedule that follows a metric."""
"""Several optimizers, on two ranks."""
REFUSED = [
    [*FSDP, "strategy.replicate=2"],
    [*FSDP, "strategy.sharding=no_shard", "strategy.replicate=2"],
    [*FSDP, "strategy.reduce_dtype=bf16"],
    [*FSDP, "precision=bf16", "strategy.mixed_precision=false", "strategy.reduce_dtype=bf16"],
    [*NONE, "+scheduler.metric=val/loss"],
    [*FSDP, "trainer.compile={}", "+trainer.compile.fullgraph=true"],
    [*DDP, "trainer.compile={}", "+trainer.compile.fullgraph=true"],
    [*NONE, "trainer.compile={backend:aot_eager}", "+trainer.compile.mode=max-autotune"],
    [*NONE, "precision=tf32"],
    ["digits", "trainer.activation_checkpointing=5"],
]
"""Options on one rank; the last of each list is rejected."""
FEW = "trainer.max_steps=4"
DROPOUT = ["model.dropout=0.1", "trainer.micro_batch_size=3", FEW]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All of it on two ranks at once, by name."""
    folder = tmp_path_factory.mktemp("steps")
    tasks: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, overrides in {**PLAIN, **SAME, **CLOSE}.items():
        tasks[name] = "train", {"folder": str(folder / name), "overrides": [*overrides, *DROPOUT]}
    for name, overrides in OVERFLOW.items():
        tasks[name] = "overflow", {"folder": str(folder / name), "overrides": overrides}
    tasks["wrapped"] = "wrapped_by_the_user", {"folder": str(folder / "wrapped")}
    tasks["none loss"] = "none_loss", {"folder": str(folder / "none"), "overrides": DDP}
    tasks["uneven"] = "uneven_evaluation", {"overrides": FSDP, "batches": [1, 4]}
    tasks["uneven stopped"] = (
        "uneven_evaluation",
        {"overrides": FSDP, "batches": [1, 9], "stop": True},
    )
    for name, overrides in UNUSUAL.items():
        tasks[name] = (
            "whole_and_interrupted",
            {"folder": str(folder / name), "overrides": [*DDP, *overrides]},
        )
    for name, overrides in PARTS.items():
        tasks[f"part {name}"] = (
            "train",
            {"folder": str(folder / f"part {name}"), "overrides": [*FSDP, *overrides, FEW]},
        )
    return dict(zip(tasks, together(2, folder, list(tasks.values())), strict=True))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    tasks = {
        "plain": ("train", {"folder": str(folder / "a"), "overrides": [*NONE, *DROPOUT]}),
        "recompute": (
            "train",
            {
                "folder": str(folder / "b"),
                "overrides": [*NONE, *DROPOUT, "trainer.activation_checkpointing=full"],
            },
        ),
        "compiled": (
            "train",
            {"folder": str(folder / "c"), "overrides": [*NONE, *DROPOUT, *COMPILED]},
        ),
        "rejected": ("rejected", {"overrides": REFUSED}),
    }
    for name, overrides in UNUSUAL.items():
        tasks[name] = (
            "whole_and_interrupted",
            {"folder": str(folder / name), "overrides": [*NONE, *overrides]},
        )
    for name, overrides in PARTS.items():
        tasks[f"part {name}"] = (
            "train",
            {"folder": str(folder / name), "overrides": [*NONE, *overrides, FEW]},
        )
    return {
        name: one[0]
        for name, one in zip(tasks, together(1, folder, list(tasks.values())), strict=True)
    }


@pytest.mark.parametrize("name", SAME)
def test_options_that_change_no_number(found, name):
    plain = "fsdp digits" if name == "compiled" else "fsdp"
    for mine, expected in zip(found[name], found[plain], strict=True):
        assert mine["losses"] == expected["losses"]
        # Summed in another order.
        assert mine["norms"] == pytest.approx(expected["norms"], rel=1e-6)


@pytest.mark.parametrize("name", CLOSE)
def test_options_that_round_differently(found, name):
    plain = "ddp digits" if name == "ddp compiled" else "ddp"
    for mine, expected in zip(found[name], found[plain], strict=True):
        assert mine["losses"] == pytest.approx(expected["losses"], rel=1e-3)
        assert mine["norms"] == pytest.approx(expected["norms"], rel=1e-2)


@pytest.mark.parametrize("name", PARTS)
def test_other_parts_agree_too(found, alone, name):
    expected = alone[f"part {name}"]
    for mine in found[f"part {name}"]:
        assert mine["losses"] == pytest.approx(expected["losses"], rel=2e-5)
        # Muon's own arithmetic is in bf16.
        assert mine["norms"] == pytest.approx(expected["norms"], rel=1e-3)


@pytest.mark.parametrize("name", ["recompute", "compiled"])
def test_recomputing_and_compiling_change_no_number_on_one_rank(alone, name):
    for key in ("losses", "norms", "digest"):
        assert alone[name][key] == alone["plain"][key]


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_steps_resume_to_the_bit(found, alone, name):
    for result in [alone[name], *found[name]]:
        whole, first, second = result["whole"], result["first"], result["second"]
        assert (first["stopped"], second["step"]) == (15, 6)
        for key in ("losses", "norms", "rates"):
            assert first[key] + second[key] == whole[key]
        assert second["digest"] == whole["digest"]
        assert whole["rates"] == [0.01, 0.005, 0.0025, 0.00125, 0.000625, 0.0003125]


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_incompatible_options_of_strategies_are_rejected(alone, overrides):
    (sentence,) = alone["rejected"][REFUSED.index(overrides)]
    assert sentence.startswith(overrides[-1].removeprefix("+"))
    assert re.search("; (take|use|remove) ", sentence)


@pytest.mark.parametrize("name", OVERFLOW)
def test_all_ranks_handle_an_infinity_on_one_rank_in_the_same_way(found, name):
    first, second = found[name]
    for key in ("skipped", "samples", "scale", "losses"):
        assert str(first[key]) == str(second[key])
    retries = name.endswith("retry")
    assert first["skipped"] == (0 if retries else 1)
    assert first["samples"] == 12 * (7 if retries else 6)
    assert first["scale"] == (512 if name.endswith("scaler") else 1)


def test_a_model_that_the_user_has_wrapped(found):
    for rank in found["wrapped"]:
        assert rank["ddp parts"] == rank["ddp whole"]
        assert rank["fsdp parts"] == rank["fsdp whole"]
        for key in ("losses", "norms"):
            assert rank["fsdp whole"][key] == pytest.approx(rank["ddp whole"][key], rel=1e-5)
    names = [
        name for name in found["wrapped"][0]["ddp whole"]["tensors"] if name.startswith("model/")
    ]
    assert names == ["model/0.weight", "model/0.bias", "model/2.weight", "model/2.bias"]


def test_no_loss_on_one_rank_of_ddp_is_bounded(found):
    assert [rank["step"] for rank in found["none loss"]] == [6, 6]


def test_ranks_with_unequal_numbers_of_held_out_batches(found):
    for rank in found["uneven"]:
        assert rank["passes"] == 4
        assert rank["metrics"]["loss"] == pytest.approx(rank["expected"], rel=1e-6)
    stopped = found["uneven stopped"]
    assert [rank["metrics"] for rank in stopped] == [None, None]
    assert len({rank["passes"] for rank in stopped}) == 1
