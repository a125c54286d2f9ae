"""Metrics of torchmetrics in an evaluation: as computed over all targets at once, for any ranks and
batches."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from launcher import BaseHook, CheckpointingHook, EvaluationHook, JsonlHook, MediaHook
from launcher.errors import ConfigError
from launcher.hooks.metrics import Matrix, Metrics, scores, split_tables
from support.toy import Recorder, Toy

pytestmark = pytest.mark.skipif(find_spec("torchmetrics") is None, reason="needs torchmetrics")


class Classifier(Toy):
    """Returns logits and targets as records, and nothing else changes in its forward."""

    def forward(self, input: torch.Tensor) -> Any:
        logits = self.model(input).squeeze(-1)
        targets = (input.sum(-1) > 1).long()
        outputs = {} if self.model.training else {"logits": logits, "targets": targets}
        return logits.pow(2).mean(), outputs


def test_metrics_of_a_trainer_without_hydra_and_no_state_of_theirs_in_training(tmp_path):
    logged, batches = Recorder(), [torch.rand(5, 2), torch.rand(2, 2)]
    from torchmetrics.classification import BinaryAUROC

    metric = BinaryAUROC()
    trainer = Classifier(
        [EvaluationHook(1, lambda: batches, metrics={"auc": metric}), logged], 2, tmp_path
    )
    trainer.train()
    values = [records["val"]["auc"] for _, records in logged.records]
    assert len(values) == 3 and "logits" not in logged.records[0][1]["val"]
    trainer.model.eval()
    with torch.no_grad():
        logits = torch.cat([trainer.model(batch).squeeze(-1) for batch in batches])
    expected = BinaryAUROC()(logits.sigmoid(), torch.cat([(b.sum(-1) > 1).long() for b in batches]))
    assert values[-1] == pytest.approx(float(expected)), "each evaluation starts from nothing"


def test_metric_that_cannot_be_computed_is_one_message(tmp_path):
    from torchmetrics import classification

    hook = EvaluationHook(
        1, lambda: [torch.rand(2, 2)], metrics={"auc": classification.BinaryAUROC()}
    )
    with pytest.raises(
        ConfigError, match="metrics: Sequential returns no `logits` and `targets` in evaluation"
    ):
        Toy([hook], 1, tmp_path).train()
    hook = EvaluationHook(
        1, lambda: [torch.rand(2, 2)], metrics={"x": classification.MultilabelRecall(3)}
    )
    with pytest.raises(
        ConfigError, match=r"metrics\.x: MultilabelRecall does not take predictions of shape"
    ):
        Classifier([hook], 1, tmp_path).train()
    with pytest.raises(ConfigError, match=r"metrics\.x: int is not a metric"):
        Metrics({"x": 3})


def test_metrics_get_probabilities_without_ignored_targets():
    """Small logits look like probabilities: torchmetrics must not guess."""
    logits = torch.tensor([[[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]])
    predictions, targets = scores(logits, torch.tensor([[1, -100, 0]]))
    assert targets.tolist() == [1, 0] and torch.equal(predictions, logits[0, [0, 2]].softmax(-1))
    predictions, _ = scores(logits.movedim(-1, 1), torch.tensor([[1, -100, 0]]))
    assert torch.equal(predictions, logits[0, [0, 2]].softmax(-1)), "classes may be axis 1"
    assert scores(torch.tensor([0.0]), torch.tensor([1]))[0].tolist() == [0.5]
    assert scores(torch.tensor([3.0]), torch.tensor([2.5]))[0].tolist() == [3.0]


class Fixed:
    """A metric of any shape."""

    def __init__(self, value: Any):
        self.value = value

    def reset(self) -> None:
        pass

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        pass

    def compute(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "numbers", "tables"),
    [
        (torch.tensor(2.0), {"x": 2.0}, {}),
        (torch.tensor([[2.0]]), {"x": 2.0}, {}),
        (torch.tensor([1.0, 2.0]), {"x": {"0": 1.0, "1": 2.0}}, {}),
        (torch.tensor([[1, 2]]), {}, {"x": [[1, 2]]}),
        (torch.ones(2, 1, 2), {}, {"x": {"0": [[1.0, 1.0]], "1": [[1.0, 1.0]]}}),
        ({"a": torch.ones(2, 2), "b": 1}, {"x": {"b": 1.0}}, {"x": {"a": [[1.0, 1.0]] * 2}}),
    ],
    ids=["number", "one cell", "of each class", "table", "tables", "dict"],
)
def test_shapes_of_a_metric(value, numbers, tables):
    def plain(records: Any) -> Any:
        if isinstance(records, Matrix):
            return records.values.tolist()
        return {key: plain(item) for key, item in records.items()}

    found, drawn = split_tables(Metrics({"x": Fixed(value)}).compute())
    assert (found, plain(drawn)) == (numbers, tables)


def train(workspace: Path, max_steps: int, *hooks: BaseHook) -> None:
    from torchmetrics.classification import BinaryConfusionMatrix

    torch.manual_seed(0)
    evaluation = EvaluationHook(
        2,
        loader=lambda: [torch.tensor([[0.1, 0.2], [0.8, 0.9], [0.7, 0.6]])],
        metrics={"confusion": BinaryConfusionMatrix()},
    )
    files = [JsonlHook(), CheckpointingHook(2), MediaHook()]
    Classifier([evaluation, *hooks, *files], max_steps, workspace).train()


def test_a_value_with_two_dimensions_is_an_image_and_not_a_number_for_each_cell(tmp_path, caplog):
    """Once for each evaluation, over a resume too, with the bytes of an uninterrupted run."""
    logged = Recorder()
    with caplog.at_level("INFO"):
        train(tmp_path / "resumed", 2, logged)
        train(tmp_path / "resumed", 4, logged)
        train(tmp_path / "whole", 4)
    assert not any("confusion" in records.get("val", {}) for _, records in logged.records)
    lines = (tmp_path / "resumed" / "media.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["step"], row["kind"], row["key"], row["path"]) for row in rows] == [
        (step, "image", "val/confusion", f"images/{step}/val/confusion.png") for step in (0, 2, 4)
    ]
    for row in rows:
        images = [(tmp_path / name / row["path"]).read_bytes() for name in ("resumed", "whole")]
        assert images[0] == images[1]
    text = (tmp_path / "resumed" / "metrics.jsonl").read_text() + caplog.text
    assert "confusion" not in text


def test_a_large_table_is_drawn_without_its_numbers():
    from torchmetrics.classification import MulticlassConfusionMatrix

    metric = MulticlassConfusionMatrix(num_classes=32)
    drawn = Matrix("x", metric, torch.eye(32)).draw()
    assert drawn.shape == (1920, 1920, 3) and drawn.dtype == np.uint8 and len(np.unique(drawn)) > 9


def test_what_is_missing_for_a_picture_is_one_message(monkeypatch):
    from torchmetrics.classification import MulticlassStatScores

    for metric in (Fixed(torch.ones(2, 3)), MulticlassStatScores(num_classes=2, average=None)):
        name = type(metric).__name__
        with pytest.raises(
            ConfigError,
            match=rf"hooks\.evaluation\.metrics\.x: {name} has a value .* \(2, 3\), which its plot",
        ):
            Matrix("x", metric, torch.ones(2, 3)).draw()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"metrics\.x: Fixed has .* matplotlib; pip install"):
        Matrix("x", Fixed(None), torch.ones(2, 3)).draw()
