"""DeepSpeed's stages: what changes no number, what a rank meets alone, what it holds, and where its checkpoints go."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from support.drive import stored
from support.ranks import Task, together

pytest.importorskip("deepspeed")

STAGES = {n: ["strategy=deepspeed", f"strategy.zero_stage={n}"] for n in range(4)}
DROPOUT = ["model.dropout=0.1", "trainer.micro_batch_size=3"]
OFFLOAD, GATHERED = "strategy.offload_optimizer=true", "strategy.stage3_param_persistence_threshold"
SAME = {
    **{f"compiled, stage {n}": (n, ["trainer.compile={backend:aot_eager}"]) for n in (0, 2)},
    **{f"recompute, stage {n}": (n, ["trainer.activation_checkpointing=full"]) for n in STAGES},
    "recompute every 2nd, none kept": (3, ["trainer.activation_checkpointing=2", f"{GATHERED}=0"]),
    "none kept gathered": (3, [f"{GATHERED}=0"]),
    "several tensors a group": (3, ["strategy.sub_group_size=2000"]),
    **{f"optimizer on the host, stage {n}": (n, [OFFLOAD]) for n in (1, 2, 3)},
    "all on the host": (3, [OFFLOAD, "strategy.offload_param=true"]),
    "small buckets": (2, ["strategy.reduce_bucket_size=1000", "strategy.overlap_comm=false"]),
    "gradients where they come": (1, ["strategy.contiguous_gradients=false", "strategy.overlap_comm=false"]),
}
"""Two ranks, and what the plain stage gives."""
try:
    HAS_FP16 = torch.ops.mkldnn._is_mkldnn_fp16_supported()  # DeepSpeed asks the same
except (AttributeError, RuntimeError):
    HAS_FP16 = False
SCALED = ["precision=fp16", "strategy.initial_scale_power=10", "strategy.hysteresis=1"]
OVERFLOW = {
    f"stage {n} {kind}": [*STAGES[n], *extra]
    for n in STAGES
    for kind, extra in {
        "skip": [],
        "retry": ["trainer.max_non_finite_grad_retries=1"],
        "bf16": ["precision=bf16"],
        **({"fp16": SCALED} if n and HAS_FP16 else {}),
    }.items()
}
THERE = {"lion": find_spec("lion_pytorch") is not None, "muon": hasattr(torch.optim, "Muon")}
PARTS = {
    "digits, bf16": (3, ["digits", "precision=bf16"]),
    "untied": (3, ["model.tie_embeddings=false"]),
    "sgd": (1, ["optimizer=sgd"]),
    "lion": (2, ["optimizer=lion"]),
    "muon": (0, ["optimizer=muon"]),
    **{f"frozen, stage {n}": (n, ["model._target_=support.frozen.Frozen"]) for n in STAGES},
}
"""Other parts, on two ranks, and under none on one."""
PARTS = {name: part for name, part in PARTS.items() if THERE.get(name, True)}
FROZEN = ["model._target_=support.frozen.Frozen"]
WRITERS = {
    **{f"stage {n}": STAGES[n] for n in STAGES},
    **{f"stage {n}, bf16": [*STAGES[n], "precision=bf16"] for n in (0, 2, 3)},
    "frozen": [*STAGES[3], *FROZEN],
}
READERS = {
    "one rank": (1, {1: 3, 0: 2, 2: 0, 3: 1}),
    "two ranks again": (2, {1: 0, 0: 3, 2: 1, 3: 2}),
    "three ranks": (3, {1: 2, 0: 1, 2: 3, 3: 3}),
}
"""How many ranks, and which stage reads what was written under which."""


def reading(writer: str, stages: dict[int, int]) -> list[str]:
    """Overrides of the one who reads."""
    number = int(WRITERS[writer][1][-1])
    return [*STAGES[stages[number]], *WRITERS[writer][2:]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def found(root: Path) -> dict[str, list[Any]]:
    """All that two ranks do by themselves, by name."""
    tasks: dict[str, Task] = {}
    for n, overrides in STAGES.items():
        tasks[f"stage {n}"] = "train", {"folder": str(root / f"s{n}"), "overrides": [*overrides, *DROPOUT]}
    for i, (name, (n, more)) in enumerate(SAME.items()):
        tasks[name] = "train", {"folder": str(root / f"o{i}"), "overrides": [*STAGES[n], *DROPOUT, *more]}
    for i, (name, overrides) in enumerate(OVERFLOW.items()):
        tasks[name] = "overflow", {"folder": str(root / f"i{i}"), "overrides": overrides}
    for i, (name, (n, more)) in enumerate(PARTS.items()):
        tasks[f"part {name}"] = "train", {"folder": str(root / f"p{i}"), "overrides": [*STAGES[n], *more]}
    for name, overrides in WRITERS.items():
        tasks[f"write {name}"] = "saved", {"folder": str(root / name), "overrides": overrides}
    tasks["weights"] = "initial_weights", {"overrides": STAGES[3]}
    tasks["weights, bf16"] = "initial_weights", {"overrides": [*STAGES[2], "precision=bf16"]}
    tasks["uneven"] = "uneven_evaluation", {"overrides": STAGES[3], "batches": [1, 4]}
    tasks["after"] = "train", {"folder": str(root / "after"), "overrides": ["strategy=ddp"]}
    return dict(zip(tasks, together(2, root / "two", list(tasks.values())), strict=True))


def readings(root: Path, reader: str) -> dict[str, Task]:
    stages = READERS[reader][1]
    tasks: dict[str, Task] = {}
    for writer in WRITERS:
        paths = {"source": str(source(root, reader, writer)), "folder": str(root / f"{reader} {writer}")}
        steps = ["trainer.max_steps=5"] if "again" in reader else []
        tasks[f"{reader} {writer}"] = "reloaded", {**paths, "overrides": [*reading(writer, stages), *steps]}
    return tasks


def source(root: Path, reader: str, writer: str) -> Path:
    """What a reader reads: the second goes on from what the first has left."""
    return root / f"one rank {writer}" if "again" in reader else root / writer


@pytest.fixture(scope="module")
def alone(root: Path, found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """All that one rank does, by name."""
    tasks: dict[str, Task] = {"weights": ("initial_weights", {"overrides": ["strategy=none"]})}
    for i, (name, (_, more)) in enumerate(PARTS.items()):
        tasks[name] = "train", {"folder": str(root / f"a{i}"), "overrides": ["strategy=none", *more]}
    tasks |= readings(root, "one rank")
    return dict(zip(tasks, together(1, root / "one", list(tasks.values())), strict=True))


@pytest.fixture(scope="module")
def read(root: Path, alone: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """What each rank of each reader had from each writer."""
    results = dict(alone)
    for reader in ("two ranks again", "three ranks"):
        tasks = readings(root, reader)
        ranks = together(READERS[reader][0], root / reader, list(tasks.values()))
        results |= dict(zip(tasks, ranks, strict=True))
    return results


@pytest.mark.parametrize("name", SAME)
def test_options_that_change_no_number(found: dict[str, list[Any]], name: str) -> None:
    for mine, expected in zip(found[name], found[f"stage {SAME[name][0]}"], strict=True):
        assert mine["losses"] == expected["losses"]
        assert mine["norms"] == pytest.approx(expected["norms"], rel=1e-6)  # summed in another order


@pytest.mark.parametrize("name", OVERFLOW)
def test_all_ranks_handle_an_infinity_on_one_rank_in_the_same_way(found: dict[str, list[Any]], name: str) -> None:
    first, second = found[name]
    for key in ("skipped", "samples", "losses"):
        assert str(first[key]) == str(second[key])
    retries = name.endswith("retry")
    assert first["skipped"] == (0 if retries else 1)
    assert first["samples"] == 12 * (7 if retries else 6)
    assert first["loss_scale"] == (512 if name.endswith("fp16") else None)


@pytest.mark.parametrize("name", PARTS)
def test_other_parts_agree_with_none(found: dict[str, list[Any]], alone: dict[str, list[Any]], name: str) -> None:
    close = 2e-2 if "bf16" in name else 1e-3 if name == "muon" else 1e-5  # Muon's own arithmetic is in bf16
    for mine in found[f"part {name}"]:
        assert mine["losses"] == pytest.approx(alone[name][0]["losses"], rel=close)
        assert mine["norms"] == pytest.approx(alone[name][0]["norms"], rel=close)


def test_the_first_weights_are_those_of_none(found: dict[str, list[Any]], alone: dict[str, list[Any]]) -> None:
    for name in ("weights", "weights, bf16"):
        main, other = found[name]
        assert main["weights"] == alone["weights"][0]["weights"]
        assert main["next"] == alone["weights"][0]["next"] != other["next"]


def test_ranks_with_unequal_numbers_of_held_out_batches(found: dict[str, list[Any]]) -> None:
    for rank in found["uneven"]:
        assert rank["passes"] == 4
        assert rank["metrics"]["loss"] == pytest.approx(rank["expected"], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "share"), [("stage 0", 1), ("stage 1", 10 / 12), ("stage 2", 10 / 12), ("none kept gathered", 8 / 12)]
)
def test_bytes_of_a_rank(found: dict[str, list[Any]], name: str, share: float) -> None:
    """4 for a weight, 4 for its master (none at stage 0), 8 for its moments; what is in pieces is halved."""
    for rank in found[name]:
        assert rank["bytes"]["here"] == pytest.approx(rank["bytes"]["all"] * share, rel=0.02)


def test_nothing_is_left_for_the_next_run(found: dict[str, list[Any]]) -> None:
    assert found["after"][0]["linear"] == "torch"
    assert found["stage 3"][0]["linear"] == "torch"


@pytest.mark.parametrize("writer", WRITERS)
def test_every_value_is_written_once(root: Path, found: dict[str, list[Any]], writer: str) -> None:
    files = stored(str(root / writer))
    assert files["written"] == files["numel"]
    assert any(name.endswith("exp_avg") for name in files["numel"])


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("reader", READERS)
def test_tensors_are_equal_to_the_bit(root: Path, read: dict[str, list[Any]], reader: str, writer: str) -> None:
    step = 4 if "again" in reader else 3
    expected = stored(str(source(root, reader, writer)))["tensors"]
    ranks = read[f"{reader} {writer}"]
    assert len(ranks) == READERS[reader][0]
    for rank in ranks:
        assert rank["tensors"] == expected
        assert (rank["step"], rank["samples"], rank["last"]) == (step, step * 12, step + 1)
