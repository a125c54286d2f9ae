"""Means over the steps of an interval, for the progress and logging hooks."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import torch

from launcher.hooks.base import Records, StepInfo, TrainerView
from launcher.hooks.interval import IntervalHook
from launcher.hooks.records import key_average, to_numbers
from launcher.process import ranks
from launcher.process.lanes import Lanes
from launcher.types import PositiveInt

TIMES = "step_time", "data_time", "non_finite_grad_retry_count"
AVERAGED_KEYS = "loss", *TIMES, "records"


class Row(TypedDict):
    """A step's values as numbers."""

    loss: float
    grad_norm: float | None
    records: Records
    step_time: float
    data_time: float
    non_finite_grad_retry_count: int
    max_memory: float | None


class Stats(NamedTuple):
    """Means over the steps since the last report. Times are in seconds."""

    steps: int
    loss: float
    grad_norm: float | None
    step_time: float
    data_time: float
    non_finite_grad_retry_count: float
    max_memory: float | None
    records: Records
    learning_rates: dict[str, float]
    """The rates of the last step, by group name or `group_<i>`."""
    unexplained: int
    """Steps on this rank whose loss was not finite although the gradient was, so none was
    skipped."""


class StatsHook(IntervalHook):
    """Collects each step's `step_info` and reads it, which makes the host wait, once an interval.

    Args:
        interval: in optimizer steps.
        sync: use means over all ranks, not over this rank only.
    """

    def __init__(self, interval: PositiveInt, sync: bool):
        self.interval, self.sync = interval, sync
        self._unread: list[StepInfo] = []
        self._rows: list[Row] = []

    def on_after_step(self, trainer: TrainerView) -> None:
        self._unread.append(trainer.step_info)
        super().on_after_step(trainer)

    def report(self, trainer: TrainerView) -> None:
        rates = _learning_rates(trainer)
        stats = means(self._read(trainer), rates)
        if self.sync and trainer.strategy.ranks.is_distributed:
            stats = _over_ranks(stats, averages_losses=trainer.strategy.lanes is None)
        self._rows = []
        self.report_means(trainer, stats)

    def report_means(self, trainer: TrainerView, stats: Stats) -> None:
        raise NotImplementedError

    def _read(self, trainer: TrainerView) -> list[Row]:
        """Return the rows of all steps since the last report. All ranks must call it."""
        self._rows += _to_rows(self._unread, trainer.strategy.lanes)
        self._unread = []
        return self._rows

    # An interrupted interval continues in the next attempt, so that its means are the same.
    def state(self, trainer: TrainerView) -> list[dict[str, Any]]:
        """Return the state. All ranks must call it."""
        return [dict(row) for row in self._read(trainer)]

    def load_state(self, state: list[Any]) -> None:
        self._rows = list(state)


def means(rows: Sequence[Row], learning_rates: dict[str, float]) -> Stats:
    """Compute means over consecutive steps."""
    losses = [row["loss"] for row in rows]
    norms = [row["grad_norm"] for row in rows if row["grad_norm"] is not None]
    memory = [row["max_memory"] for row in rows if row["max_memory"] is not None]
    count = len(rows)
    return Stats(
        steps=count,
        loss=sum(losses) / count,
        grad_norm=sum(norms) / len(norms) if norms else None,
        step_time=sum(row["step_time"] for row in rows) / count,
        data_time=sum(row["data_time"] for row in rows) / count,
        non_finite_grad_retry_count=sum(row["non_finite_grad_retry_count"] for row in rows) / count,
        max_memory=max(memory, default=None),
        records=key_average([row["records"] for row in rows]),
        learning_rates=learning_rates,
        unexplained=sum(
            not math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"] or 0.0)
            for row in rows
        ),
    )


def _learning_rates(trainer: TrainerView) -> dict[str, float]:
    # A group may have been added since.
    groups = zip(trainer.optimizer.param_groups, trainer.step_info.get("lr", ()), strict=False)
    return {
        str(group.get("name", f"group_{i}")): float(rate) for i, (group, rate) in enumerate(groups)
    }


def _to_rows(steps: Sequence[StepInfo], lanes: Lanes | None) -> list[Row]:
    """Read the numbers of each step; the host waits for the device.

    They are python numbers, since a mean of tensors would round differently once some have been
    restored from a checkpoint.
    """
    all_losses = [info["loss"] for info in steps]
    losses = [loss[0] if len(loss) == 1 else torch.stack(loss).mean() for loss in all_losses]
    norms = [info["grad_norm"] for info in steps if info["grad_norm"] is not None]
    numbers = iter(_to_floats(losses + norms))
    loss_numbers = [next(numbers) for _ in losses]
    return [
        {
            "loss": loss,
            "grad_norm": None if info["grad_norm"] is None else next(numbers),
            "records": records,
            "step_time": info["step_time"],
            "data_time": sum(info["data_time"]),
            "non_finite_grad_retry_count": info["non_finite_grad_retry_count"],
            "max_memory": info.get("max_memory"),
        }
        for info, loss, records in zip(
            steps, loss_numbers, _mean_records(steps, lanes), strict=True
        )
    ]


def _mean_records(steps: Sequence[StepInfo], lanes: Lanes | None) -> list[Records]:
    """Return each step's means over this rank's micro-batches, or over all lanes in their order."""
    records = [info["records"] for info in steps]
    if lanes is not None and steps:
        numbers = [[to_numbers(record) for record in of_step] for of_step in records]
        gathered = ranks.all_gather(numbers)
        records = [lanes.in_order(of_ranks) for of_ranks in zip(*gathered, strict=True)]
    return [
        to_numbers(of_step[0] if len(of_step) == 1 else key_average(of_step)) for of_step in records
    ]


def _to_floats(values: list[Any]) -> list[float]:
    """Copy the values to the host, in one transfer if all are on a device."""
    if values and all(isinstance(value, torch.Tensor) and not value.is_cpu for value in values):
        numbers: list[float] = torch.stack([value.float() for value in values]).tolist()
        return numbers
    return list(map(float, values))


def _over_ranks(stats: Stats, averages_losses: bool) -> Stats:
    """Average over the ranks, which all have the same number of samples; memory is the maximum.

    Without `averages_losses`, each rank already has the values of all lanes.
    """
    gathered = ranks.all_gather(stats)
    memory = [rank_stats.max_memory for rank_stats in gathered if rank_stats.max_memory is not None]
    names = AVERAGED_KEYS if averages_losses else TIMES
    averages = key_average(
        [{name: getattr(rank_stats, name) for name in names} for rank_stats in gathered]
    )
    norms = [rank_stats.grad_norm for rank_stats in gathered if rank_stats.grad_norm is not None]
    if averages_losses:
        has_all = len(norms) == len(gathered)
        averages["grad_norm"] = sum(norms) / len(norms) if has_all else None
    return stats._replace(max_memory=max(memory, default=None), **averages)
