"""Means over the steps of an interval, for the progress and logging hooks."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch

from launcher.hooks.interval import IntervalHook
from launcher.hooks.records import key_average, to_numbers
from launcher.hooks.view import Records, State, Stats, StepInfo, TrainerView
from launcher.process import ranks
from launcher.process.lanes import Lanes
from launcher.types import PositiveInt

SAME_WITH_LANES = "loss", "grad_norm"
"""The means that each rank has of all lanes."""


class StatsHook(IntervalHook):
    """Collects each step's `step_info` and reads it, which makes the host wait, once an interval.

    Args:
        interval: in optimizer steps.
        sync: use means over all ranks, not over this rank only.
    """

    def __init__(self, interval: PositiveInt, sync: bool):
        self.interval = interval
        self.sync = sync
        self._steps: list[StepInfo] = []
        self._restored: State | None = None
        """Numbers of the interval's steps in the attempt before."""

    def on_after_step(self, trainer: TrainerView) -> None:
        self._steps.append(trainer.step_info)
        # As the base class does it, without a call in each step.
        if trainer.state.step % self.interval == 0:
            self.report(trainer)

    def report(self, trainer: TrainerView) -> None:
        # A resume may only repeat the evaluation of the last step.
        last = self._steps[-1] if self._steps else trainer.step_info
        count = len(self._steps) + len(self._restored["losses"] if self._restored else ())
        if not count:
            return
        # Hooks with the same interval share the means, so they are read and gathered once.
        if "means" not in last or last["means"].steps != count:
            last["means"] = _means(self.state(trainer), trainer.optimizer.param_groups)
        stats: Stats = last["means"]
        if self.sync and trainer.strategy.ranks.is_distributed:
            if "means_over_ranks" not in last or last["means_over_ranks"].steps != count:
                averages_losses = trainer.strategy.lanes is None
                last["means_over_ranks"] = _over_ranks(stats, averages_losses)
            stats = last["means_over_ranks"]
        self._steps.clear()
        self._restored = None
        self.report_means(trainer, stats)

    def report_means(self, trainer: TrainerView, stats: Stats) -> None:
        raise NotImplementedError

    # An interrupted interval continues in the next attempt, so that its means are the same.
    def state(self, trainer: TrainerView) -> State:
        """Return the numbers of the interval so far. All ranks must call it."""
        _share_records(self._steps, trainer.strategy.lanes)
        values = _values(self._steps)
        if self._restored is None:
            return values
        return {name: self._restored[name] + value for name, value in values.items()}

    def load_state(self, state: State) -> None:
        # A checkpoint of an earlier version has no number of targets.
        self._restored = {"without_targets": 0, **state}


def _share_records(steps: Sequence[StepInfo], lanes: Lanes | None) -> None:
    """Replace the records of this rank's lanes by numbers of all lanes, in their order."""
    if lanes is None:
        return
    unshared = [i for i, info in enumerate(steps) if not info.get("has_all")]
    if not unshared:
        return
    numbers = [[to_numbers(records) for records in steps[i]["records"]] for i in unshared]
    gathered = ranks.all_gather(numbers)
    for at, i in enumerate(unshared):
        steps[i]["records"] = lanes.in_order([of_rank[at] for of_rank in gathered])
        steps[i]["has_all"] = True


def _means(values: Records, param_groups: Sequence[dict[str, object]]) -> Stats:
    count = len(values["losses"])
    losses, norms, records, memory = (
        values[name] for name in ("losses", "norms", "records", "memory")
    )
    step_times, data_times = zip(*values["times"], strict=True)
    total = sum(losses)
    numbers = {
        "loss": total / count,
        "step_time": sum(step_times) / count,
        "data_time": sum(data_times) / count,
        "non_finite_grad_retry_count": values["retries"] / count,
    }
    if norms:
        numbers["grad_norm"] = sum(norms) / len(norms)
    if memory:
        numbers["max_memory"] = max(memory)
    return Stats(
        count,
        numbers,
        key_average(records) if records else {},
        # A group may have been added since.
        {
            str(group.get("name", f"group_{i}")): float(rate)
            for i, (group, rate) in enumerate(zip(param_groups, values["rates"][-1], strict=False))
        },
        0 if math.isfinite(total) else _count_unexplained(losses, norms),
        values["without_targets"],
    )


def _values(steps: Sequence[StepInfo]) -> Records:
    """Return the numbers of each step; the host waits for the device.

    They are python numbers, since a mean of tensors would round differently once some have been
    restored from a checkpoint.
    """
    losses = [
        loss[0] if len(loss) == 1 else torch.stack(loss).mean()
        for loss in [info["loss"] for info in steps]
    ]
    norms = [info["grad_norm"] for info in steps if info["grad_norm"] is not None]
    numbers = _to_floats(losses + norms)
    return {
        "losses": numbers[: len(losses)],
        "norms": numbers[len(losses) :],
        "records": [
            to_numbers(records[0] if len(records) == 1 else key_average(records))
            for records in [info["records"] for info in steps]
            if any(records)
        ],
        "times": [(info["step_time"], sum(info["data_time"])) for info in steps],
        "rates": [[float(rate) for rate in info.get("lr", ())] for info in steps[-1:]],
        "without_targets": _to_floats(
            [info["num_targets"] for info in steps if "num_targets" in info]
        ).count(0),
        "retries": sum([info["non_finite_grad_retry_count"] for info in steps]),
        "memory": [info["max_memory"] for info in steps if "max_memory" in info],
    }


def _count_unexplained(losses: list[float], norms: list[float]) -> int:
    pairs = zip_longest(losses, norms, fillvalue=0.0)
    return sum(not math.isfinite(loss) and math.isfinite(norm) for loss, norm in pairs)


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
    gathered = ranks.all_gather((stats.numbers, stats.records))
    numbers = key_average([of_rank for of_rank, _ in gathered])
    if "max_memory" in numbers:
        numbers["max_memory"] = max(of_rank["max_memory"] for of_rank, _ in gathered)
    if averages_losses:
        records = key_average([of_rank for _, of_rank in gathered])
        return stats._replace(numbers=numbers, records=records)
    same = {name: stats.numbers[name] for name in SAME_WITH_LANES if name in stats.numbers}
    return stats._replace(numbers=numbers | same)
