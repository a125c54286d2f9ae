"""job=lr_find and job=check: what they report, and that they write no run."""

import json
from pathlib import Path

import pytest

from support.runner import launch

DIGITS = ("model=mlp", "data=digits", "model.hidden_dim=24", "device=cpu")
NANS = "data.dataset._target_=support.faulty.NaNs"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_lr_find_on_a_configuration_of_several_ranks(tmp_path):
    words = ("job=lr_find", "job.num_iterations=60", "strategy=ddp", "dispatch.nproc=2")
    done = launch(tmp_path, *DIGITS, *words, "run.id=x", code=0)
    assert files(tmp_path) == ["lr_find", "lr_find/mlp-digits-x.json"]
    result = json.loads((tmp_path / "lr_find/mlp-digits-x.json").read_text())
    assert result["lrs"][0] == 1e-7 and 1e-4 < result["suggested_lr"] < 1
    assert f"optimizer.lr={result['suggested_lr']:.2g}\n" in done.output


@pytest.mark.parametrize("ranks", [[], ["strategy=ddp", "dispatch.nproc=2"]], ids=["one", "ddp"])
def test_check_without_faults(tmp_path, ranks):
    words = (*DIGITS, "job=check", "trainer.micro_batch_size=16", *ranks)
    done = launch(tmp_path / "outputs", *words, code=0)
    texts = ("batch[0]: [16, 64] float32", "batch[1]: [16] int64", "MLP, 2,410 parameters")
    for text in (*texts, "gradient norm", "GiB"):
        assert text in done.output, done.output
    assert "No errors" in done.output and files(tmp_path) == []


@pytest.mark.parametrize(
    ("overrides", "code", "message"),
    [
        (["model.num_classes=7"], 1, "batch[1] has values from 0 to 9; model.num_classes=7"),
        (
            ["model.num_classes=7", "strategy=ddp", "dispatch.nproc=2"],
            1,
            "of 2 failed:\njob=check: 2 errors",
        ),
        (
            ["data=custom", "data.num_features=64", "data.num_classes=10", NANS],
            1,
            "batch[0] has 3 of ",
        ),
        (["job=lr_find", "job.start_lr=2"], 2, "job.start_lr=2: must be less than job.end_lr=1."),
    ],
    ids=["labels", "two ranks", "inputs", "range"],
)
def test_check_with_faults(tmp_path, overrides, code, message):
    done = launch(tmp_path / "outputs", *DIGITS, "job=check", *overrides, code=code)
    assert message in done.output, done.output
    assert "Traceback" not in done.output and files(tmp_path) == []
