"""DeepSpeed's stages: options that change no number, non-finite gradients, memory, and checkpoints
at other ranks."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from support.ranks import Task, by_name, task
from support.reloading import stored

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed")

STAGES = {n: ["strategy=deepspeed", f"strategy.zero_stage={n}"] for n in range(4)}
FEW = "trainer.max_steps=3"
DROPOUT = ["model.dropout=0.1", "trainer.micro_batch_size=3", FEW]
GATHERED = "strategy.stage3_param_persistence_threshold"
FILE = {
    "train_batch_size": "auto",
    "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "overlap_comm": "auto"},
}
"""A file of DeepSpeed's."""
SAME = {
    "none kept gathered": (
        3,
        ["trainer.activation_checkpointing=2", f"{GATHERED}=0", "strategy.sub_group_size=2e3"],
    ),
    "all on the host": (3, ["strategy.offload_optimizer=true", "strategy.offload_param=true"]),
    "a file": (2, ["strategy.config_file={root}/ds.json"]),
}
"""Two ranks: the losses are those of the plain stage."""
try:
    HAS_FP16 = torch.ops.mkldnn._is_mkldnn_fp16_supported()  # DeepSpeed asks the same
except (AttributeError, RuntimeError):
    HAS_FP16 = False
SCALED = ["precision=fp16", "strategy.initial_scale_power=10", "strategy.hysteresis=1"]
OVERFLOW = {
    "stage 0 skip": STAGES[0],
    "stage 3 retry": [*STAGES[3], "trainer.max_non_finite_grad_retries=1"],
    "stage 0 bf16": [*STAGES[0], "precision=bf16"],
    **({"stage 3 fp16": [*STAGES[3], *SCALED]} if HAS_FP16 else {}),
}
FROZEN = ["model._target_=support.frozen.Frozen"]
PARTS = {
    "digits, bf16": (3, ["digits", "precision=bf16"]),
    "digits, compiled": (2, ["digits", "trainer.compile={backend:aot_eager}"]),
    "frozen": (3, FROZEN),
    **({"muon": (0, ["optimizer=muon"])} if hasattr(torch.optim, "Muon") else {}),
}
"""Other parts, on two ranks, and under none on one."""
WRITERS = {
    "stage 0": (0, []),
    "stage 3": (3, []),
    "stage 0, bf16": (0, ["precision=bf16"]),
    "frozen, stage 2": (2, FROZEN),
    "frozen, stage 3, bf16": (3, [*FROZEN, "precision=bf16", f"{GATHERED}=0"]),
}
"""Two ranks."""
READERS = {name: (1, name, {0: 2, 2: 0, 3: 1}[n]) for name, (n, _) in WRITERS.items()}
READERS["again"] = (3, "stage 0", 3)
"""Number of ranks, the writer and the stage. Three ranks read what one has read and written."""
REJECTED = {
    "optimizer=MuonAdamW: it cannot update the sharded parameters of zero_stage=2": (
        2,
        ["optimizer=muon"],
    ),
    "trainer.compile=true: torch's compiler cannot trace": (
        3,
        ["trainer.compile={backend:aot_eager}"],
    ),
    "precision=fp16: ": (0, ["precision=fp16"]),
    "precision.init_scale, precision.growth_interval: DeepSpeed's": (
        2,
        ["precision=fp16", "precision.init_scale=8"],
    ),
    "strategy=deepspeed: DeepSpeed rejects it: ": (
        2,
        ["strategy.overlap_comm=auto", "strategy.sub_group_size=1.5"],
    ),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepspeed")
    (folder / "ds.json").write_text(json.dumps(FILE))
    return folder


@pytest.fixture(scope="module")
def results(root):
    """Results of two ranks, of one, and of three, by name."""
    tasks: dict[str, Task] = {}
    for n in STAGES:
        tasks[f"stage {n}"] = task("train", root / f"s{n}", *STAGES[n], *DROPOUT)
    for name, (n, more) in SAME.items():
        more = [override.replace("{root}", str(root)) for override in more]
        tasks[name] = task("train", root / name, *STAGES[n], *DROPOUT, *more)
    for name, overrides in OVERFLOW.items():
        tasks[name] = task("overflow", root / name, *overrides)
    for name, (n, more) in PARTS.items():
        tasks[f"part {name}"] = task("train", root / f"part {name}", *STAGES[n], *more, FEW)
    for name, (n, more) in WRITERS.items():
        tasks[f"write {name}"] = task("saved", place(root, name), *STAGES[n], *more)
    tasks["weights"] = "initial_weights", {"overrides": STAGES[3]}
    tasks["weights, bf16"] = "initial_weights", {"overrides": [*STAGES[2], "precision=bf16"]}
    tasks["uneven"] = "uneven_evaluation", {"overrides": STAGES[3], "batches": [1, 4]}
    tasks["damaged"] = task("damaged", root / "damaged", *STAGES[2], "strategy.timeout=60")
    tasks["after"] = task("train", root / "after", "strategy=ddp", "trainer.max_steps=2")
    one: dict[str, Task] = {"weights": ("initial_weights", {"overrides": ["strategy=none"]})}
    for name, (_, more) in PARTS.items():
        more = [override for override in more if "compile" not in override]
        one[f"part {name}"] = task("train", root / f"alone {name}", "strategy=none", *more, FEW)
    rejected = [[*STAGES[n], *more] for n, more in REJECTED.values()]
    one["rejected"] = "rejected", {"overrides": rejected}
    return by_name(root, (2, tasks), (1, one | readings(root, 1)), (3, readings(root, 3)))


@pytest.fixture
def pair(results):
    return results[0]


@pytest.fixture
def alone(results):
    return results[1]


@pytest.fixture
def read(results):
    """State that each rank of each reader had from each writer."""
    return results[1] | results[2]


def place(root: Path, name: str) -> Path:
    """A folder for a run, which is the same run wherever it is copied to."""
    return root / name / "name" / "id"


def source(root: Path, reader: str) -> Path:
    return place(root, "read stage 0" if reader == "again" else reader)


def readings(root: Path, count: int) -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    for name, (ranks, writer, stage) in READERS.items():
        if ranks == count:
            words = [*STAGES[stage], *WRITERS[writer][1], f"trainer.max_steps={5 - (count == 1)}"]
            folder = place(root, f"read {name}")
            tasks[name] = task("reloaded", folder, *words, source=str(source(root, name)))
    return tasks


@pytest.mark.parametrize(
    ("name", "plain"), [(name, f"stage {stage}") for name, (stage, _) in SAME.items()]
)
def test_options_that_change_no_number(pair, name, plain):
    for mine, expected in zip(pair[name], pair[plain], strict=True):
        assert mine["losses"] == expected["losses"]
        # Summed in another order.
        assert mine["norms"] == pytest.approx(expected["norms"], rel=1e-6)


@pytest.mark.parametrize("name", OVERFLOW)
def test_all_ranks_handle_an_infinity_on_one_rank_in_the_same_way(pair, name):
    first, second = pair[name]
    for key in ("skipped", "samples", "losses"):
        assert str(first[key]) == str(second[key])
    retries = name.endswith("retry")
    assert first["skipped"] == (0 if retries else 1)
    assert first["samples"] == 12 * (7 if retries else 6)
    assert first["loss_scale"] == (512 if name.endswith("fp16") else None)


@pytest.mark.parametrize("name", PARTS)
def test_other_parts_agree_with_none(pair, alone, name):
    # Muon's own arithmetic is in bf16.
    close = 2e-2 if "bf16" in name else 1e-3 if name == "muon" else 1e-5
    for mine in pair[f"part {name}"]:
        assert mine["losses"] == pytest.approx(alone[f"part {name}"][0]["losses"], rel=close)
        assert mine["norms"] == pytest.approx(alone[f"part {name}"][0]["norms"], rel=close)


def test_the_initial_weights_are_those_of_none(pair, alone):
    for name in ("weights", "weights, bf16"):
        main, other = pair[name]
        assert main["weights"] == alone["weights"][0]["weights"]
        assert main["next"] == alone["weights"][0]["next"] != other["next"]


def test_ranks_with_unequal_numbers_of_held_out_batches(pair):
    for rank in pair["uneven"]:
        assert rank["passes"] == 4
        assert rank["metrics"]["loss"] == pytest.approx(rank["expected"], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "share"),
    [("stage 0", 1), ("stage 1", 10 / 12), ("stage 2", 10 / 12), ("none kept gathered", 8 / 12)],
)
def test_bytes_of_a_rank(pair, name, share):
    """4 for a weight, 4 for its master (none at stage 0), 8 for its moments; what is in pieces is
    halved."""
    for rank in pair[name]:
        assert rank["bytes"]["here"] == pytest.approx(rank["bytes"]["all"] * share, rel=0.02)


def test_deepspeed_leaves_torch_unpatched_for_the_next_run(pair):
    assert pair["after"][0]["linear"] == "torch"
    assert pair["stage 3"][0]["linear"] == "torch"


def test_all_ranks_take_the_checkpoint_before_a_damaged_one(pair):
    for rank in pair["damaged"]:
        assert "corrupt-step-00000006" in rank["folders"]
        assert rank["again"]["losses"] == rank["whole"]["losses"][3:]
        assert rank["again"]["digest"] == rank["whole"]["digest"]


@pytest.mark.parametrize("writer", WRITERS)
def test_every_value_is_written_once(root, pair, writer):
    files = stored(str(place(root, writer)))
    assert files["written"] == files["numel"]
    assert any(name.endswith("exp_avg") for name in files["numel"])


@pytest.mark.parametrize("name", READERS)
def test_tensors_are_equal_to_the_bit(root, read, name):
    step = 4 if name == "again" else 3
    expected = stored(str(source(root, name)))["tensors"]
    assert len(read[name]) == READERS[name][0]
    for rank in read[name]:
        assert rank["tensors"] == expected
        assert (rank["step"], rank["samples"], rank["last"]) == (step, step * 12, step + 1)


@pytest.mark.parametrize("sentence", REJECTED)
def test_unsupported_combination_with_deepspeed_is_rejected(alone, sentence):
    (sentences,) = alone["rejected"][0][list(REJECTED).index(sentence)]
    assert sentences.startswith(sentence)
