"""Matrices: numbers in `media.jsonl`, a picture each, and none of it among the metrics."""

import json
import math
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from launcher import BaseHook, CheckpointingHook, EvaluationHook, JsonlHook, LoggingHook, MediaHook
from launcher.hooks.matrices import picture, split_matrices, to_rows
from launcher.hooks.metrics import Metrics
from support.toy import GOOD, Recorder, Toy


class Counted:
    """A metric without torchmetrics, of any shape."""

    def __init__(self, value: torch.Tensor):
        self.value, self.count = value, 0

    def reset(self) -> None:
        self.count = 0

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        self.count += len(targets)

    def compute(self) -> torch.Tensor:
        return self.value * self.count


class Classifier(Toy):
    def forward(self, input: torch.Tensor) -> Any:
        loss = self.model(input).pow(2).mean()
        outputs = {"logits": torch.zeros(4, 2), "targets": torch.zeros(4, dtype=torch.long)}
        return loss, {} if self.model.training else outputs


def train(workspace: Path, max_steps: int, *hooks: BaseHook) -> None:
    metrics = {"table": Counted(torch.tensor([[1, 2], [3, 4], [5, 6]]))}
    evaluation = EvaluationHook(2, loader=lambda: [GOOD, GOOD], metrics=metrics)
    files = [LoggingHook(1), JsonlHook(), CheckpointingHook(2), MediaHook()]
    Classifier([evaluation, *hooks, *files], max_steps, workspace, batches=[GOOD]).train()


def test_metric_with_two_dimensions_is_a_matrix_and_not_a_number_for_each_cell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each evaluation, over a resume too."""
    logged = Recorder()
    with caplog.at_level("INFO"):
        train(tmp_path, 2, logged)
        train(tmp_path, 4, logged)
    assert not any("table" in records.get("val", {}) for _, records in logged.records)
    assert "table" not in (tmp_path / "metrics.jsonl").read_text() + caplog.text
    rows = [json.loads(line) for line in (tmp_path / "media.jsonl").read_text().splitlines()]
    assert [(row["step"], row["kind"], row["key"]) for row in rows] == [
        (step, "matrix", "val/table") for step in (0, 2, 4)
    ]
    assert rows[-1]["rows"] == [[8, 16], [24, 32], [40, 48]]
    assert rows[-1]["path"] == "images/4/val/table.png"
    assert (tmp_path / rows[-1]["path"]).read_bytes() == picture(rows[-1]["rows"])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor(2.0), 2.0),
        (torch.tensor([[2.0]]), 2.0),
        (torch.tensor([1.0, 2.0]), {"0": 1.0, "1": 2.0}),
        (torch.tensor([[1, 2]]), [[1, 2]]),
        (torch.ones(2, 1, 2), {"0": [[1.0, 1.0]], "1": [[1.0, 1.0]]}),
        ({"a": torch.ones(2, 2)}, {"a": [[1.0, 1.0], [1.0, 1.0]]}),
    ],
    ids=["number", "one cell", "of each class", "matrix", "matrices", "dict"],
)
def test_shapes_of_a_metric(value: Any, expected: Any) -> None:
    class Fixed(Counted):
        def compute(self) -> Any:
            return value

    assert Metrics({"x": Fixed(torch.ones(()))}).compute() == {"x": expected}


def test_numbers_and_matrices_are_taken_apart() -> None:
    records = {"loss": 1.0, "table": [[1]], "named": {"f1": {"0": 2.0}, "table": [[2]]}}
    assert split_matrices(records) == (
        {"loss": 1.0, "named": {"f1": {"0": 2.0}}},
        {"table": [[1]], "named": {"table": [[2]]}},
    )


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (torch.tensor([[1.5, math.nan]], dtype=torch.bfloat16), [[1.5, None]]),
        (np.array([[True, False]]), [[True, False]]),
        ([[1, 2], [3, math.inf]], [[1.0, 2.0], [3.0, None]]),
    ],
)
def test_rows(value: Any, rows: Any) -> None:
    assert to_rows("x", value) == rows
    json.dumps(rows, allow_nan=False)


@pytest.mark.parametrize(
    "value", [1.0, [1, 2], [[1], [2, 3]], torch.ones(1, 2, 3), torch.ones(0, 2), [["a"]], None]
)
def test_what_is_not_a_matrix_is_reported(value: Any) -> None:
    with pytest.raises(ValueError, match=r"log_matrices x: .* is not a matrix of numbers; pass a"):
        to_rows("x", value)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (400, 3)])
def test_picture_is_a_png_that_is_darker_for_larger_numbers(shape: tuple[int, int]) -> None:
    image = pytest.importorskip("PIL.Image")
    numbers = np.arange(math.prod(shape), dtype=float).reshape(shape)
    drawn = np.asarray(image.open(BytesIO(picture(numbers.tolist())))).astype(int)
    size = max(1, 320 // max(shape))
    assert drawn.shape == (shape[0] * size, shape[1] * size, 3)
    assert drawn[0, 0].tolist() == [255, 255, 255], "the smallest is white"
    if math.prod(shape) > 1:
        assert drawn[-1, -1].tolist() == [0, 64, 130]
    brightness = drawn[::size, ::size].sum(-1).ravel()
    assert (np.diff(brightness) <= 0).all()
    unknown = np.asarray(image.open(BytesIO(picture([[None, 1.0]]))))
    assert unknown[0, 0].tolist() == [200, 200, 200]
