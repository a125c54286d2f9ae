"""Events on one rank alone, and options: all ranks decide alike, and no number changes that should
not."""

import re

import pytest
import torch

from support.ranks import Task, by_name, task

FSDP, DDP, NONE = ["strategy=fsdp"], ["strategy=ddp"], ["strategy=none"]
COMPILED = ["trainer.compile={backend:aot_eager}"]  # the quickest that has a graph
SAME = {
    "recompute every 2nd": [*FSDP, "trainer.activation_checkpointing=2"],
    "one unit on the host": [
        *FSDP,
        "strategy.min_params=0",
        "strategy.cpu_offload=true",
        "strategy.init=host",
    ],
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
}
"""Two ranks, and to rounding what plain ddp gives."""
PLAIN = {"fsdp": FSDP, "ddp": DDP, "fsdp digits": [*FSDP, "digits"]}
ALONE = {"plain": ["digits"], "compiled": ["digits", *COMPILED]}
SCALER = ["precision=fp16", "precision.init_scale=1024"]
OVERFLOW = {
    "ddp retry": [*DDP, "trainer.max_non_finite_grad_retries=1"],
    "fsdp skip": FSDP,
    "no_shard scaler": [*FSDP, "strategy.sharding=no_shard", *SCALER],
}
HAS_MUON = hasattr(torch.optim, "Muon")
PLATEAU = [
    "scheduler=plateau",
    "scheduler.patience=0",
    "scheduler.factor=0.5",
    "+scheduler.threshold=0.999",  # no value is an improvement by so much
    "hooks=[checkpointing,evaluation]",
    "hooks.evaluation.interval=1",
]
"""A schedule that follows a metric."""
IN_BF16 = ["strategy.reduce_dtype=bf16", "trainer.max_steps=6"]
REJECTED = [
    [*DDP, "trainer.lanes=2", "strategy.reduce_dtype=bf16"],
    [*FSDP, "strategy.replicate=2"],
    [*FSDP, "strategy.sharding=no_shard", "strategy.replicate=2"],
    [*FSDP, "strategy.reduce_dtype=bf16"],
    [*FSDP, "precision=bf16", "strategy.mixed_precision=false", "strategy.reduce_dtype=bf16"],
    [*NONE, "+scheduler.metric=val/loss"],
    [*FSDP, "trainer.compile={}", "+trainer.compile.fullgraph=true"],
    [*NONE, "trainer.compile={backend:aot_eager}", "+trainer.compile.mode=max-autotune"],
    [*NONE, "precision=tf32"],
    ["digits", "trainer.activation_checkpointing=5"],
]
"""Options on one rank; the last of each list is rejected."""
FEW = "trainer.max_steps=3"
DROPOUT = ["model.dropout=0.1", "trainer.micro_batch_size=3", FEW]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All of it on one rank and on two, by name."""
    folder = tmp_path_factory.mktemp("steps")
    one: dict[str, Task] = {"rejected": ("rejected", {"overrides": REJECTED})}
    for name, overrides in ALONE.items():
        one[name] = task("train", folder / f"alone {name}", *NONE, *DROPOUT, *overrides)
    if HAS_MUON:
        one["muon"] = task("train", folder / "muon alone", *NONE, "optimizer=muon", FEW)
    tasks: dict[str, Task] = {}
    for name, overrides in {**PLAIN, **SAME, **CLOSE}.items():
        tasks[name] = task("train", folder / name, *overrides, *DROPOUT)
    for name, overrides in OVERFLOW.items():
        tasks[name] = task("overflow", folder / name, *overrides)
    tasks["wrapped"] = "wrapped_by_the_user", {"folder": str(folder / "wrapped")}
    tasks["none loss"] = task("none_loss", folder / "none", *DDP)
    uneven = {"overrides": FSDP, "batches": [1, 4]}
    tasks["uneven"] = "uneven_evaluation", uneven
    tasks["uneven stopped"] = "uneven_evaluation", {**uneven, "batches": [1, 9], "stop": True}
    tasks["plateau"] = task("whole_and_interrupted", folder / "plateau", *DDP, *PLATEAU)
    tasks["ddp bf16"] = task("whole_and_interrupted", folder / "bf16", *DDP, *DROPOUT, *IN_BF16)
    if HAS_MUON:
        tasks["muon"] = task("train", folder / "muon", *FSDP, "optimizer=muon", FEW)
    return by_name(folder, (1, one), (2, tasks))


@pytest.fixture
def alone(results):
    return {name: one for name, (one,) in results[0].items()}


@pytest.fixture
def pair(results):
    return results[1]


@pytest.mark.parametrize("name", SAME)
def test_options_that_change_no_number(pair, name):
    plain = "fsdp digits" if name == "compiled" else "fsdp"
    for mine, expected in zip(pair[name], pair[plain], strict=True):
        assert mine["losses"] == expected["losses"]
        # Summed in another order.
        assert mine["norms"] == pytest.approx(expected["norms"], rel=1e-6)


@pytest.mark.parametrize("name", CLOSE)
def test_options_that_round_differently(pair, name):
    for mine, expected in zip(pair[name], pair["ddp"], strict=True):
        assert mine["losses"] == pytest.approx(expected["losses"], rel=1e-3)
        assert mine["norms"] == pytest.approx(expected["norms"], rel=1e-2)


@pytest.mark.skipif(not HAS_MUON, reason="torch.optim.Muon came with torch 2.9")
def test_muon_agrees_with_one_rank(pair, alone):
    for mine in pair["muon"]:
        assert mine["losses"] == pytest.approx(alone["muon"]["losses"], rel=2e-5)
        # Muon's own arithmetic is in bf16.
        assert mine["norms"] == pytest.approx(alone["muon"]["norms"], rel=1e-3)


def test_compiling_changes_no_number_on_one_rank(alone):
    for key in ("losses", "norms", "digest"):
        assert alone["compiled"][key] == alone["plain"][key]


def test_a_schedule_that_follows_a_metric_resumes_to_the_bit(pair):
    for result in pair["plateau"]:
        whole, first, second = result["whole"], result["first"], result["second"]
        assert (first["stopped"], second["step"]) == (15, 6)
        for key in ("losses", "norms", "rates"):
            assert first[key] + second[key] == whole[key]
        assert second["digest"] == whole["digest"]
        assert whole["rates"] == [0.01, 0.005, 0.0025, 0.00125, 0.000625, 0.0003125]


def test_gradients_that_are_summed_in_bf16_resume_to_the_bit(pair):
    for result, plain in zip(pair["ddp bf16"], pair["ddp"], strict=True):
        whole, first, second = result["whole"], result["first"], result["second"]
        assert first["losses"] + second["losses"] == whole["losses"]
        assert second["digest"] == whole["digest"]
        assert whole["losses"][1:3] != plain["losses"][1:]
        assert whole["losses"][:3] == pytest.approx(plain["losses"], rel=1e-2)
        assert whole["norms"][:3] == pytest.approx(plain["norms"], rel=1e-1)


@pytest.mark.parametrize("overrides", REJECTED, ids=" ".join)
def test_incompatible_options_of_strategies_are_rejected(alone, overrides):
    (sentence,) = alone["rejected"][REJECTED.index(overrides)]
    assert sentence.startswith(overrides[-1].removeprefix("+"))
    assert re.search("; (take|use|remove) ", sentence)


@pytest.mark.parametrize("name", OVERFLOW)
def test_all_ranks_handle_an_infinity_on_one_rank_in_the_same_way(pair, name):
    first, second = pair[name]
    for key in ("skipped", "samples", "scale", "losses"):
        assert str(first[key]) == str(second[key])
    retries = name.endswith("retry")
    assert first["skipped"] == (0 if retries else 1)
    assert first["samples"] == 12 * (7 if retries else 6)
    assert first["scale"] == (512 if name.endswith("scaler") else 1)


def test_a_model_that_the_user_has_wrapped(pair):
    for rank in pair["wrapped"]:
        assert rank["ddp parts"] == rank["ddp whole"]
        assert rank["fsdp parts"] == rank["fsdp whole"]
        for key in ("losses", "norms"):
            assert rank["fsdp whole"][key] == pytest.approx(rank["ddp whole"][key], rel=1e-5)
    names = [
        name for name in pair["wrapped"][0]["ddp whole"]["tensors"] if name.startswith("model/")
    ]
    assert names == ["model/0.weight", "model/0.bias", "model/2.weight", "model/2.bias"]


def test_no_loss_on_one_rank_of_ddp_is_bounded(pair):
    assert pair["none loss"] == [6, 6]


def test_ranks_with_unequal_numbers_of_held_out_batches(pair):
    for rank in pair["uneven"]:
        assert rank["passes"] == 4
        assert rank["metrics"]["loss"] == pytest.approx(rank["expected"], rel=1e-6)
    stopped = pair["uneven stopped"]
    assert [rank["metrics"] for rank in stopped] == [None, None]
    assert len({rank["passes"] for rank in stopped}) == 1
