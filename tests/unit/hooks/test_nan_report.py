"""The first place that is not finite."""

from typing import Any

import pytest
import torch
from torch import nn

from launcher import FunctionHook
from launcher.errors import TrainingError
from launcher.hooks.nan_report import NanReportHook, describe_not_finite
from support.toy import BAD, GOOD, Toy


class Log(nn.Module):
    """log x, which is infinite at 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log()


class Root(nn.Module):
    """sqrt(x - x): finite, and its gradient is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.detach()).sqrt()


class Special(Toy):
    part: nn.Module = nn.Identity()

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.BatchNorm1d(2), nn.Linear(2, 2), nn.ReLU(), self.part, nn.Linear(2, 1)
        )


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if ", rank 0: " in record.getMessage()]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Log(), "the output of 3 (Log) is the first that is not finite: 0 NaN and"),
        (
            Root(),
            (
                "every output is finite, and the gradient by the output of 2 is the first that is"
                " not: "
            ),
        ),
    ],
)
def test_the_module_is_named(tmp_path, part, expected, caplog):
    trainer = Special([NanReportHook(max_reports=2)], 3, tmp_path, [GOOD])
    trainer.part = part
    with pytest.raises(TrainingError, match="Training ended with 3 skipped updates"):
        trainer.train()
    assert [line.split(", rank 0: ")[0] for line in lines(caplog)] == ["Step 1", "Step 2"]
    assert expected in lines(caplog)[0]


@pytest.mark.parametrize("value", [complex("nan"), complex(0, float("inf"))])
def test_a_complex_value_is_described(value):
    text = describe_not_finite({"a": torch.tensor([1 + 1j, value])})
    assert text is not None and text.endswith("of 2 values")


def test_a_batch_and_a_weight_are_named(tmp_path, caplog):
    def spoil(trainer: Any) -> None:
        if trainer.step == 4:
            trainer.model[1].bias.data.fill_(float("inf"))

    hooks = [NanReportHook(), FunctionHook(on_before_step=spoil)]
    with pytest.raises(TrainingError):
        Special(hooks, 4, tmp_path, [GOOD, BAD, GOOD, GOOD]).train()
    assert lines(caplog) == [
        "Step 2, rank 0: the batch has 8 NaN and 0 infinite of 8 values.",
        "Step 4, rank 0: the weight 1.bias has 0 NaN and 2 infinite of 2 values.",
    ]


def test_the_training_is_unchanged(tmp_path):
    results = []
    for hooks in ([], [NanReportHook()]):
        trainer = Special([*hooks], 6, tmp_path, [GOOD, BAD, GOOD])
        trainer.part = nn.Dropout(0.5)
        trainer.train()
        results.append([tensor.tolist() for tensor in trainer.model.state_dict().values()])
    # NaN, which the batch has left in the statistics, equals itself.
    assert repr(results[0]) == repr(results[1])


def test_retries_that_are_used_up(tmp_path, caplog):
    with pytest.raises(TrainingError, match="after 1 of 1 retries"):
        Toy([NanReportHook()], 3, tmp_path, [BAD], max_non_finite_grad_retries=1).train()
    assert lines(caplog) == ["Step 1, rank 0: the batch has 16 NaN and 0 infinite of 16 values."]
