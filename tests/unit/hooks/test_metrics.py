"""Metrics of torchmetrics in an evaluation: as computed over all targets at once, for any ranks and
batches."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher import EvaluationHook
from launcher.errors import ConfigError
from launcher.hooks.metrics import Metrics, scores
from support.toy import Recorder, Toy

pytestmark = pytest.mark.skipif(find_spec("torchmetrics") is None, reason="needs torchmetrics")


class Classifier(Toy):
    """Returns logits and targets as records, and nothing else changes in its forward."""

    def forward(self, input: torch.Tensor) -> Any:
        logits = self.model(input).squeeze(-1)
        targets = (input.sum(-1) > 1).long()
        outputs = {} if self.model.training else {"logits": logits, "targets": targets}
        return logits.pow(2).mean(), outputs


def test_metrics_of_a_trainer_without_hydra_and_no_state_of_theirs_in_training(
    tmp_path: Path,
) -> None:
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


def test_metric_that_cannot_be_computed_is_one_message(tmp_path: Path) -> None:
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


def test_metrics_get_probabilities_without_ignored_targets() -> None:
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
    ("value", "numbers"),
    [
        (torch.tensor(2.0), 2.0),
        (torch.tensor([[2.0]]), 2.0),
        (torch.tensor([1.0, 2.0]), {"0": 1.0, "1": 2.0}),
        ({"a": torch.ones(2), "b": 1}, {"a": {"0": 1.0, "1": 1.0}, "b": 1.0}),
    ],
)
def test_shapes_of_a_metric(value: Any, numbers: Any) -> None:
    assert Metrics({"x": Fixed(value)}).compute() == {"x": numbers}
    with pytest.raises(ConfigError, match=r"^hooks\.evaluation\.metrics\.x\.a: .* \(2, 2\)"):
        Metrics({"x": Fixed({"a": torch.ones(2, 2)})}).compute()
