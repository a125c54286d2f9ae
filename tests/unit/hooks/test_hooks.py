"""Files of a tiny training: lines of metrics and checkpoints."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from launcher import BaseHook, CheckpointingHook, JsonlHook, LoggingHook
from launcher.errors import ConfigError
from launcher.rundir.step_lines import drop_lines_after
from support.toy import Toy


def test_jsonl_has_a_line_a_step(tmp_path: Path) -> None:
    Toy([LoggingHook(interval=1), Twice(), JsonlHook()], 3, tmp_path).train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(
        {"train/loss", "train/lr/0.bias", "val/x", "time", "attempt"} <= set(line) for line in lines
    )


class Twice(BaseHook):
    """Logs once more at each step."""

    def on_after_step(self, trainer: Any) -> None:
        trainer.log({"val": {"x": 1.0, "bad": float("nan")}})
        trainer.log({"val": {"unseen": 1.0}}, dry_run=True)


def test_lines_after_a_step_are_dropped_and_torn_ones(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    drop_lines_after(file, 2)
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_checkpoints_best_and_rotation(tmp_path: Path) -> None:
    class Metric(BaseHook):
        values = {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.0}

        def on_after_step(self, trainer: Any) -> None:
            trainer.log({"val": {"loss": self.values[trainer.step]}})

    def hooks() -> list[BaseHook]:
        return [CheckpointingHook(interval=1, best_metric="val/loss"), Metric()]

    Toy(hooks(), 3, tmp_path).train()
    names = lambda: sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*"))  # noqa: E731
    assert names() == ["step-00000002", "step-00000003"]
    Toy(hooks(), 4, tmp_path).train()
    assert names() == ["step-00000002", "step-00000004"], (
        "best 1.0 of the first attempt stays the best"
    )
    assert (tmp_path / "checkpoints" / "best").resolve().name == "step-00000002"


@pytest.mark.parametrize(
    ("load", "error"),
    [("never", "^load=never: .*; use another workspace for"), ("no/such", "no such checkpoint")],
)
def test_load_modes_that_refuse(tmp_path: Path, load: str, error: str) -> None:
    Toy([CheckpointingHook(interval=1)], 1, tmp_path).train()
    with pytest.raises(ConfigError, match=error):
        Toy([CheckpointingHook(interval=1, load=load)], 2, tmp_path).train()


OPTIMIZERS = {
    "AdamW": torch.optim.AdamW,
    "Adam": torch.optim.Adam,
    "SGD": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
    "NAdam": torch.optim.NAdam,
}


NAMES = list(OPTIMIZERS)


@pytest.mark.parametrize(
    ("first", "second"),
    [*zip(NAMES, NAMES, strict=True), *zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True)],
)
def test_another_optimizer_is_refused_and_its_settings_are_kept(
    tmp_path: Path, first: str, second: str
) -> None:
    class Trained(Toy):
        optimizer_of = first

        def build_optimizer(self) -> torch.optim.Optimizer:
            return OPTIMIZERS[self.optimizer_of](
                self.model.parameters(), lr=0.1 if self.optimizer_of == first else 0.2
            )

    class Other(Trained):
        optimizer_of = second

    Trained([CheckpointingHook(interval=1)], 1, tmp_path).train()
    other = Other([CheckpointingHook(interval=1)], 2, tmp_path)
    names = [
        OPTIMIZERS[name](nn.Linear(1, 1).parameters(), lr=1.0).__class__.__name__
        for name in (first, second)
    ]
    if names[0] == names[1]:
        other.train()
        expected = OPTIMIZERS[first](nn.Linear(1, 1).parameters(), lr=0.1).param_groups[0]
        kept = other.optimizer.param_groups[0]
        assert kept["initial_lr"] == 0.1
        assert all(
            kept[key] == value for key, value in expected.items() if key not in ("params", "lr")
        )
        return
    with pytest.raises(
        ConfigError,
        match=rf"The optimizer is {names[1]}, 1 group; .* written with {names[0]}, 1 group",
    ):
        other.train()


class Fewer(Toy):
    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters())


class Wider(Toy):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 1))


class Deeper(Toy):
    def build_model(self) -> nn.Module:
        return nn.Sequential(*super().build_model(), nn.Linear(1, 1))


@pytest.mark.parametrize("load", ["latest", "1", "must"])
@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Fewer, "AdamW, 1 group; .* AdamW, 4 groups"),
        (Wider, r"shape \(2, 2\) in"),
        (Deeper, "3.weight: the checkpoint"),
    ],
)
def test_checkpoint_that_does_not_fit_is_rejected_before_the_attempt(
    tmp_path: Path, other: type[Toy], why: str, load: str
) -> None:
    Toy([CheckpointingHook(interval=1, keep_previous=9)], 3, tmp_path).train()
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    with pytest.raises(
        ConfigError, match=f"^load={load}: .*does not fit this configuration: .*{why}"
    ):
        other([CheckpointingHook(interval=1, load=load)], 5, tmp_path).train()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before, (
        "nothing was abandoned"
    )


@pytest.mark.parametrize("bad", [{"interval": 0}, {"interval": 1, "exit_code": "none"}])
def test_bad_checkpointing_arguments(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        CheckpointingHook(**bad)
