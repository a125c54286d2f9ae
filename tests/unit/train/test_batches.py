"""The position among the batches."""

import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from launcher import CheckpointingHook
from launcher.hooks.view import TrainState
from launcher.process import signals
from launcher.train.batches import Batches, weigh
from support.toy import GOOD, Toy


class Counting:
    """Counts the samples that it has given; a signal comes just as it has counted those of the
    third batch."""

    seed_samples = True

    def __init__(self, signum: int | None = signal.SIGTERM):
        self.samples, self.signum, self.closed = 0, signum, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        try:
            while True:
                self.samples += len(GOOD)
                if self.samples == 3 * len(GOOD) and self.signum:
                    os.kill(os.getpid(), self.signum)
                yield GOOD
        finally:
            self.closed += 1

    def state_dict(self) -> dict[str, int]:
        return {"samples": self.samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.samples = state["samples"]


def test_a_batch_that_a_signal_kept_from_the_loop_is_not_counted(tmp_path):
    def train(loader: Counting) -> Toy:
        trainer = Toy([CheckpointingHook(9, exit_signals="SIGTERM")], 5, tmp_path, loader)
        trainer.train()
        return trainer

    first, second = Counting(), Counting(signum=None)
    with pytest.raises(signals.SignalExit):
        train(first)
    assert first.samples == 2 * len(GOOD)
    signals.forget()
    trainer = train(second)
    assert trainer.step == 5 and second.samples == 5 * len(GOOD)
    assert second.closed == 1


@pytest.mark.parametrize("kind", ["counts samples", "plain"])
def test_a_rewound_batch_is_not_counted(kind):
    loader: Any = (
        Counting(signum=None) if kind != "plain" else torch.utils.data.DataLoader(torch.arange(6))
    )
    batches = Batches(
        loader, logging.getLogger(), lambda batch: None, torch.device("cpu"), alone=True
    )
    batches.start(TrainState())
    positions = []
    for _ in range(2):
        batches.mark()
        positions.append(batches.source.state_dict())
        batches.next([], may_interrupt=False)
    assert batches.source.state_dict() != positions[1]
    batches.rewind()
    assert batches.source.state_dict() == positions[1] != positions[0]
    batches.close()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_factor_is_not_rounded_to_16_bits(dtype):
    weight = torch.tensor(1 / 3, dtype=torch.float64)
    weighed = weigh({"loss": torch.ones((), dtype=dtype)}, weight)["loss"]
    assert weighed.item() == pytest.approx(1 / 3, rel=1e-7)
