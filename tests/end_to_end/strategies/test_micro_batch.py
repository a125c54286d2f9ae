"""`trainer.micro_batch_size=auto`: the size that fits, on all ranks, as if it had been set."""

from functools import cache
from pathlib import Path

import pytest

from support.runner import Outcome, launch, metrics, record, run_folder

# Each size that does not fit costs as much as the rest of a run.
HUNGRY = (
    *("model=gpt", "model._target_=support.hungry.HungryGPT", "model.dim=16", "model.num_layers=1"),
    *("model.num_heads=2", "model.dropout=0.1", "data=synthetic", "data.seq_len=16"),
    *("data.vocab_size=19", "data.batch_size=12", "data.num_val_samples=12", "trainer.max_steps=4"),
    "device=cpu",
)
AUTO = "trainer.micro_batch_size=auto"
RANKS = {
    "none": (),
    "ddp": ("strategy=ddp", "dispatch.nproc=2"),
    "fsdp": ("strategy=fsdp", "dispatch.nproc=2"),
}
CASES = {
    # What fails, and the sizes that do not fit
    "forward": ("none", ("+model.most=4",), 3, "not with 12 or 6"),
    "backward of the second step": (
        "none",
        ("+model.most=3", "+model.first=2", "+model.backward=true"),
        3,
        "not with 12 or 6",
    ),
    "one under ddp": ("ddp", ("+model.most=3", "+model.rank=1"), 3, "not with 6"),
    "all under fsdp": ("fsdp", ("+model.most=3",), 3, "not with 6"),
}


def trained(outputs: Path, *overrides: str) -> Outcome:
    done = launch(outputs, *HUNGRY, *overrides, code=0)
    return done


def tensors(outputs: Path) -> dict[str, bytes]:
    checkpoint = run_folder(outputs) / "checkpoints" / "step-00000004"
    found = {file.name: file.read_bytes() for file in checkpoint.glob("*.safetensors")}
    assert len(found) >= 2  # weights and moments, and the random state of each rank
    return found


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """The outputs of a run whose size is set, by strategy and size."""

    @cache
    def of(strategy, size):
        outputs = tmp_path_factory.mktemp("fixed")
        words = (f"trainer.micro_batch_size={size}", "+model.most=12")
        trained(outputs, *RANKS[strategy], *words)
        return outputs

    return of


@pytest.mark.parametrize("name", CASES)
def test_a_run_with_auto_is_bitwise_identical_with_one_where_the_size_is_set(tmp_path, fixed, name):
    strategy, model, size, why = CASES[name]
    auto = trained(tmp_path / "auto", *RANKS[strategy], *model, AUTO)
    assert f"{AUTO}: {size} (" in auto.output and why in auto.output, auto.output
    assert record(tmp_path / "auto")["attempts"][0]["micro_batch_size"] == size
    expected = fixed(strategy, size)
    assert metrics(tmp_path / "auto") == metrics(expected)
    assert tensors(tmp_path / "auto") == tensors(expected)
    if name == "forward":
        parts = tmp_path / "parts"
        trained(parts, *model, AUTO, "trainer.pause_at=2")
        resumed = trained(parts, *model, AUTO)
        assert f"{AUTO}: 3 (as before)" in resumed.output, resumed.output
        assert "Changed since the checkpoint: trainer" not in resumed.output
        assert metrics(parts) == metrics(tmp_path / "auto")
        assert [one["micro_batch_size"] for one in record(parts)["attempts"]] == [3, 3]


def test_one_sample_that_does_not_fit_fails_with_the_error_of_torch(tmp_path):
    most = ("+model.rank=1", "+model.most=0", "data.batch_size=4")
    done = launch(tmp_path, *HUNGRY, *RANKS["ddp"], *most, AUTO, code=1)
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB." in done.output
    assert "Less memory is needed with trainer.activation_checkpointing=full" in done.output
    assert f"{AUTO}: no size fits the memory; tried: 2, 1." in done.output
    assert f"or with {AUTO}" not in done.output
    (attempt,) = record(tmp_path)["attempts"]
    assert attempt["outcome"] == "failed" and "OutOfMemoryError" in attempt["reason"]
    assert attempt["micro_batch_size"] is None


def test_a_run_that_ran_out_of_memory_resumes_with_a_smaller_size(tmp_path):
    # The 4 passes of the first two steps succeed.
    model = ("+model.most=8", "+model.first=3")
    failed = launch(tmp_path, *HUNGRY, *model)
    assert failed.returncode == 1 and AUTO in failed.output, failed.output
    repeated = trained(tmp_path, *model, AUTO)
    assert f"{AUTO}: 6 (2 steps fit the memory)" in repeated.output, repeated.output
    assert [one["micro_batch_size"] for one in record(tmp_path)["attempts"]] == [12, 6]
