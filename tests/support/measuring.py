"""Metrics and the decisions that follow them, as tasks (see `drive`)."""

import os
import signal
from pathlib import Path
from shlex import split
from typing import Any

import torch

from launcher.errors import ConfigError
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.hooks.metrics import Metrics
from launcher.hooks.sample_means import measure_means
from launcher.process import ranks, signals
from support.masked import Masked
from support.toy import Recorder
from support.trainings import Journal, build


def steered(folder: str, overrides: list[str]) -> dict[str, Any]:
    """Decisions of hooks that steer the run on this rank, and the losses that it logged."""
    logged = Recorder()
    trainer = build(Path(folder) / "run", overrides, logged)
    trainer.train()
    savers = [hook for hook in trainer.hooks if isinstance(hook, CheckpointingHook)]
    (best,) = [hook.best.state() for hook in savers if hook.best is not None]
    trainer.strategy.teardown()
    losses = [records["train"]["loss"] for _, records in logged.records]
    end = {"step": trainer.step, "reason": trainer.state.stop_reason, "best": best}
    return {"losses": losses, **end}


def validated(overrides: list[str]) -> dict[str, float]:
    """The metrics of the first weights, as this rank logs them."""
    logged = Recorder()
    trainer = build(Path("unused"), overrides, logged)
    trainer.restore()
    for hook in trainer.hooks:
        hook.on_ready(trainer)
    trainer.strategy.teardown()
    return {name: float(value) for name, value in logged.records[0][1]["val"].items()}


def gathered(overrides: list[str], batches: list[int]) -> dict[str, Any]:
    """Return the values or messages of metrics whose state is a list.

    This rank has `batches[rank]` batches.
    """
    from torchmetrics import Metric

    class Mean(Metric):
        """The mean of the targets, of which it keeps each batch."""

        full_state_update = False

        def __init__(self, reduction: str | None):
            super().__init__()
            self.add_state("each", default=[], dist_reduce_fx=reduction)

        def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
            self.each.append(targets.float())

        def compute(self) -> torch.Tensor:
            return torch.cat([each.flatten() for each in self.each]).mean()

    trainer = build(Path("unused"), overrides, Recorder())
    outcome = {}
    for reduction in ("cat", None):
        metrics = Metrics({"mean": Mean(reduction)})
        metrics.reset(torch.device("cpu"))
        for number in range(batches[ranks.rank()]):
            records = {"logits": torch.ones(2, 3), "targets": torch.tensor([number, ranks.rank()])}
            metrics.update(torch.nn.Identity(), records)
        try:
            outcome[str(reduction)] = metrics.compute()["mean"]
        except ConfigError as error:
            outcome[str(reduction)] = str(error)
    trainer.strategy.teardown()
    return outcome


def uneven_evaluation(
    overrides: list[str], batches: list[int], stop: bool = False
) -> dict[str, Any]:
    """Held-out batches of one sample each, `batches[rank]` of them on this rank; `stop`: a signal
    to the last rank."""
    trainer: Any = build(Path("unused"), overrides, Journal())
    rank = trainer.strategy.ranks.rank
    passes = []
    generator = torch.Generator().manual_seed(0)
    samples = torch.randint(0, 19, (sum(batches), 13), generator=generator)
    own = samples[sum(batches[:rank]) :][: batches[rank]]

    def forward(batch: Any) -> Any:
        passes.append(True)
        if stop and len(passes) == 2 and rank == trainer.strategy.ranks.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return trainer.forward(batch)

    pairs = [(sample[None, :-1], sample[None, 1:]) for sample in own]
    trainer.call_forward = forward
    metrics = measure_means(trainer, pairs, 0, Metrics({}))
    with torch.no_grad(), trainer.strategy.forward_context():
        expected = trainer.forward((samples[:, :-1], samples[:, 1:]))[0]
    signals.forget()
    trainer.strategy.teardown()
    return {"metrics": metrics, "passes": len(passes), "expected": float(expected)}


def masked(folder: str, overrides: list[str], micro: int) -> dict[str, Any]:
    """Train on masked targets; the losses, and what an evaluation of 17 samples gives."""
    data = split(
        "data=custom data.dataset._target_=support.masked.Masked data.seq_len=12 data.vocab_size=19"
    )
    journal = Journal()
    trainer = build(Path(folder), [*data, *overrides, f"trainer.micro_batch_size={micro}"], journal)
    trainer.train()
    own = [Masked(17)[i] for i in range(ranks.rank(), 17, ranks.world_size())]
    collate = torch.utils.data.default_collate
    batches = [collate(own[i : i + micro]) for i in range(0, len(own), micro)]
    val = measure_means(trainer, batches, 0, Metrics({}))
    weights = trainer.strategy.full_weights() or {}
    tables = [buffer.tolist() for buffer in trainer.unwrapped_model.buffers()]
    trainer.strategy.teardown()
    result = {"losses": journal.losses, "norms": journal.norms, "val": val, "tables": tables}
    return result | {"weights": {name: tensor.tolist() for name, tensor in weights.items()}}
