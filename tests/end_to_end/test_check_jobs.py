"""job=lr_find and job=check: what they report, and that they write no run."""

import json
from pathlib import Path

import pytest

from support.runner import launch, metrics, record

DIGITS = ("model=mlp", "data=digits", "model.hidden_dim=24", "device=cpu")


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_lr_find_on_a_configuration_of_several_ranks(tmp_path: Path) -> None:
    done = launch(
        tmp_path,
        *DIGITS,
        "job=lr_find",
        "job.num_iterations=60",
        "strategy=ddp",
        "dispatch.nproc=2",
        "run.id=x",
    )
    assert done.returncode == 0, done.output
    assert files(tmp_path) == ["lr_find", "lr_find/mlp-digits-x.json", "lr_find/mlp-digits-x.png"]
    result = json.loads((tmp_path / "lr_find/mlp-digits-x.json").read_text())
    assert result["lrs"][0] == 1e-7 and 1e-4 < result["suggested_lr"] < 1
    assert f"optimizer.lr={result['suggested_lr']:.2g}\n" in done.output
    assert (tmp_path / "lr_find/mlp-digits-x.png").read_bytes().startswith(b"\x89PNG")


def test_a_range_without_extent_is_a_sentence(tmp_path: Path) -> None:
    done = launch(tmp_path / "outputs", *DIGITS, "job=lr_find", "job.start_lr=2")
    assert done.returncode == 2 and "job.start_lr=2: must be less than job.end_lr=1." in done.output
    assert files(tmp_path) == []


@pytest.mark.parametrize("ranks", [[], ["strategy=ddp", "dispatch.nproc=2"]], ids=["one", "ddp"])
def test_check_without_faults(tmp_path: Path, ranks: list[str]) -> None:
    done = launch(tmp_path / "outputs", *DIGITS, "job=check", "trainer.micro_batch_size=16", *ranks)
    assert done.returncode == 0, done.output
    for text in (
        "batch[0]: [16, 64] float32",
        "batch[1]: [16] int64",
        "MLP, 2,410 parameters",
        "gradient norm",
        "GiB",
    ):
        assert text in done.output, done.output
    assert "No errors" in done.output and files(tmp_path) == []


def test_estimate_of_memory_leaves_no_folder(tmp_path: Path) -> None:
    done = launch(tmp_path / "outputs", *DIGITS, "job=check", "job.device_memory=80GB")
    assert done.returncode == 0 and "At its peak" in done.output, done.output
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.num_classes=7"],
            "batch[1] has values from 0 to 9; model.num_classes=7 allows 0 to 6.",
        ),
        (
            ["model.num_classes=7", "strategy=ddp", "dispatch.nproc=2"],
            "of 2 failed:\njob=check: 2 errors",
        ),
        (
            ["data=custom", "data.dataset._target_=support.faulty.NaNs"],
            "batch[0] has 3 values that are NaN or infinite",
        ),
        (["optimizer=sgd", "+optimizer.lrr=1"], "sgd takes no lrr"),
    ],
    ids=["labels", "two ranks", "inputs", "key"],
)
def test_check_with_faults(tmp_path: Path, overrides: list[str], message: str) -> None:
    if "data=custom" in overrides:
        overrides = [*overrides, "data.num_features=64", "data.num_classes=10"]
    done = launch(tmp_path / "outputs", *DIGITS, "job=check", *overrides)
    assert done.returncode == (2 if "lrr" in message else 1) and message in done.output, done.output
    assert "Traceback" not in done.output and files(tmp_path) == []


def test_a_resume_keeps_the_micro_batch_that_auto_has_chosen(tmp_path: Path) -> None:
    run = (
        *("model=gpt", "model.dim=64", "model.num_layers=2", "data=synthetic", "data.seq_len=64"),
        *("data.batch_size=48", "trainer.max_steps=4", "trainer.micro_batch_size=auto"),
        "device=cpu",
    )
    small, large = "job.device_memory=12MB", "job.device_memory=1GB"
    straight = launch(tmp_path / "straight", *run, small)
    assert straight.returncode == 0 and "micro_batch_size=auto: 6. A" in straight.output
    other = tmp_path / "other"
    assert launch(other, *run, small, "trainer.pause_at=2").returncode == 0
    checked = launch(other, *run, "job=check")
    assert "micro_batch_size=auto: 6, as before" in checked.output, checked.output
    resumed = launch(other, *run, large)
    assert resumed.returncode == 0 and "auto: 6, as before" in resumed.output, resumed.output
    assert "Changed since the checkpoint: trainer" not in resumed.output
    assert metrics(other) == metrics(tmp_path / "straight")
    assert [one["micro_batch_size"] for one in record(other)["attempts"]] == [6, 6]
    evaluated = launch(other, *run, "job=evaluate")
    assert evaluated.returncode == 0, evaluated.output
