"""Means over the steps of an interval, for the progress and logging hooks."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from launcher.hooks.base import AT_LAST, BaseHook, Records, TrainerView
from launcher.hooks.records import key_average, to_numbers
from launcher.run import ranks
from launcher.types import PositiveInt

MEANS = "means"
"""The key of `step_info` with the means over the steps up to it."""
AVERAGED = "loss", "step_time", "data_time", "non_finite_grad_retry_count", "records"


class Stats(NamedTuple):
    """Means over the steps since the last report; times in seconds, `data_time` over all micro-batches of a step."""

    steps: int
    loss: float
    grad_norm: float | None
    step_time: float
    data_time: float
    non_finite_grad_retry_count: float
    max_memory: float | None
    records: Records
    learning_rates: dict[str, float]
    """Those that the last step was taken with; by group name or `group_<i>`."""
    unexplained: int
    """Steps on this rank whose loss was not finite although the gradient was, so that nothing was skipped."""


class StatsHook(BaseHook):
    """Collects each step's `step_info` and reads it once an interval: until then the host does not wait for the device.

    Args:
        report: called with the trainer and the means, after every `interval` steps and after the last.
        interval: in optimizer steps.
        sync: means over all ranks, not this one's.
    """

    def __init__(self, report: Callable[[TrainerView, Stats], None], interval: PositiveInt, sync: bool):
        self.report, self.interval, self.sync = report, interval, sync
        self.collected_step_infos: list[dict[str, Any]] = []

    def called_every(self, event: str) -> int:
        return AT_LAST if event == "on_step_boundary" else self.interval

    def on_after_step(self, trainer: TrainerView) -> None:
        if (
            not self.collected_step_infos or self.collected_step_infos[-1] is not trainer.step_info
        ):  # another hook calls this one
            self.collected_step_infos.append(trainer.step_info)
        state = trainer.state
        if state.step % self.interval == 0 or state.is_at_end():
            self._report(trainer)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if self.collected_step_infos and trainer.is_last_step:  # a hook after this one has ended the training
            self._report(trainer)

    def _report(self, trainer: TrainerView) -> None:
        stats = means(self.collected_step_infos, trainer.optimizer.param_groups)
        self.collected_step_infos.clear()
        if self.sync and trainer.strategy.ranks.is_distributed:
            stats = _over_ranks(stats)
        self.report(trainer, stats)

    # An interrupted interval continues in the next attempt, so that its means are the same.
    def state(self) -> dict[str, Any]:
        steps = self.collected_step_infos
        losses, norms = _losses_and_norms(steps)
        return {
            "losses": losses,
            "norms": norms,
            "records": _records(steps),
            "times": [(info["step_time"], sum(info["data_time"])) for info in steps],
            "retries": sum(info["non_finite_grad_retry_count"] for info in steps),
            "memory": _memory(steps),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        rows = zip_longest(state["losses"], state["norms"], state["records"], state["times"], state["memory"])
        self.collected_step_infos[:] = [
            {
                "loss": [loss],
                "grad_norm": norm,
                "records": [records or {}],
                "step_time": times[0],
                "data_time": [times[1]],
                "non_finite_grad_retry_count": 0 if i else state["retries"],
            }
            | ({} if memory is None else {"max_memory": memory})
            for i, (loss, norm, records, times, memory) in enumerate(rows)
        ]


def means(infos: Sequence[dict[str, Any]], param_groups: Sequence[dict[str, Any]]) -> Stats:
    """Of consecutive steps. They are computed once, whichever hook is the first to ask for these steps."""
    last = infos[-1]
    if MEANS not in last or last[MEANS].steps != len(infos):
        last[MEANS] = _means(infos, param_groups)
    stats: Stats = last[MEANS]
    return stats


def _means(steps: Sequence[dict[str, Any]], param_groups: Sequence[dict[str, Any]]) -> Stats:
    count, (losses, norms) = len(steps), _losses_and_norms(steps)
    records, memory, total = _records(steps), _memory(steps), sum(losses)
    return Stats(
        count,
        total / count,
        sum(norms) / len(norms) if norms else None,
        sum([info["step_time"] for info in steps]) / count,
        sum([sum(info["data_time"]) for info in steps]) / count,
        sum([info["non_finite_grad_retry_count"] for info in steps]) / count,
        max(memory) if memory else None,
        key_average(records) if records else {},
        {  # a group may have been added since
            str(group.get("name", f"group_{i}")): float(rate)
            for i, (group, rate) in enumerate(zip(param_groups, steps[-1].get("lr", ()), strict=False))
        },
        0 if math.isfinite(total) else _unexplained(losses, norms),
    )


# As python numbers: a mean of tensors would round otherwise once some have been restored from a checkpoint.
def _losses_and_norms(steps: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Of each step; no norms if the strategy does not know them. Here the host waits for the device."""
    losses = [each[0] if len(each := info["loss"]) == 1 else torch.stack(each).mean() for info in steps]
    norms = [norm for info in steps if (norm := info["grad_norm"]) is not None]
    numbers = _numbers(losses + norms)
    return numbers[: len(losses)], numbers[len(losses) :]


def _records(steps: Sequence[dict[str, Any]]) -> list[Records]:
    """Of the steps that have some."""
    return [to_numbers(_mean_records(each)) for info in steps if any(each := info["records"])]


def _memory(steps: Sequence[dict[str, Any]]) -> list[float]:
    """Of the steps at which it was measured."""
    return [info["max_memory"] for info in steps if "max_memory" in info]


def _unexplained(losses: list[float], norms: list[float]) -> int:
    pairs = zip_longest(losses, norms, fillvalue=0.0)
    return sum(not math.isfinite(loss) and math.isfinite(norm) for loss, norm in pairs)


def _mean_records(records: list[Records]) -> Records:
    return records[0] if len(records) == 1 else key_average(records)


def _numbers(values: list[Any]) -> list[float]:
    """On the host, in one transfer if all are on a device."""
    if values and all(isinstance(value, torch.Tensor) and not value.is_cpu for value in values):
        numbers: list[float] = torch.stack([value.float() for value in values]).tolist()
        return numbers
    return list(map(float, values))


def _over_ranks(own: Stats) -> Stats:
    """Every rank has equally many samples, so the mean of the means is the mean; times as well; memory is the most."""
    gathered = ranks.all_gather(own)
    norms = [each.grad_norm for each in gathered if each.grad_norm is not None]
    return own._replace(
        grad_norm=sum(norms) / len(norms) if len(norms) == len(gathered) else None,
        max_memory=max((each.max_memory for each in gathered if each.max_memory is not None), default=None),
        **key_average([{name: getattr(each, name) for name in AVERAGED} for each in gathered]),
    )
