"""The value that other sweepers get from a job, and by which a search judges a run."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.runs.objective import job_value, objective_of


def config(folder: Path, **keys: Any) -> dict[str, Any]:
    hooks = {"checkpointing": {"best_metric": "val/loss", "best_mode": "auto"}}
    return {"job": keys, "hooks": hooks, "run": {"dir": str(folder)}}


@pytest.mark.parametrize(
    ("named", "sweeper", "objective"),
    [
        (None, "ax", "val/loss"),
        (None, "basic", None),
        (None, None, None),
        ("val/accuracy", "basic", "val/accuracy"),
    ],
)
def test_a_sweeper_that_looks_at_it_gets_one_metric(tmp_path, named, sweeper, objective):
    keys = {} if named is None else {"objective": named}
    assert objective_of(config(tmp_path, **keys), sweeper) == objective


@pytest.mark.parametrize(
    ("metric", "which", "expected"),
    [
        ("val/loss", "best", 1.0),
        ("val/loss", "last", 3.0),
        ("val/accuracy", "best", 0.5),
        ("train/loss", "best", 4.0),
        ("train/loss", "last", math.nan),
    ],
)
def test_the_best_or_the_last_value(tmp_path, metric, which, expected):
    lines = [
        {"step": 1, "val/loss": 2.0, "val/accuracy": 0.1, "train/loss": 4.0},
        {"step": 2, "val/loss": 1.0, "val/accuracy": 0.5},
        {"step": 3, "val/loss": 3.0, "val/accuracy": 0.3, "train/loss": "nan"},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert job_value(config(tmp_path, value=which), metric) == pytest.approx(expected, nan_ok=True)
    with pytest.raises(ConfigError, match=r"^job.objective=val/los: .* mean val/loss\?"):
        job_value(config(tmp_path), "val/los")
