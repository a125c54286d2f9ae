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

MEASURED, MEANS = "measured", "means"
"""The keys of `step_info` with its values on the host, and with means over the steps up to it."""


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
        self.learning_rates: dict[str, float] = {}
        self._steps: list[dict[str, Any]] = []

    def on_after_step(self, trainer: TrainerView) -> None:
        self._steps.append(trainer.step_info)
        state = trainer.state
        if state.step % self.interval == 0 or state.is_at_end():
            self._report(trainer)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if self._steps and trainer.is_last_step:  # a hook after this one has ended the training
            self._report(trainer)

    def _report(self, trainer: TrainerView) -> None:
        groups, rates = trainer.optimizer.param_groups, trainer.step_info["lr"]
        self.learning_rates = {
            str(group.get("name", f"group_{i}")): float(rate)
            for i, (group, rate) in enumerate(zip(groups, rates, strict=False))  # a group may have been added since
        }
        stats = self._mean()
        self._steps = []
        self.report(trainer, stats)

    def called_every(self, event: str) -> int:
        return AT_LAST if event == "on_step_boundary" else 1

    def _mean(self) -> Stats:
        values, count = means(self._steps), len(self._steps)
        unexplained = values["unexplained"]
        if self.sync and ranks.world_size() > 1:
            values = _over_ranks(ranks.all_gather(values))
        return Stats(
            count, values["loss"], values["grad_norm"], values["step_time"], values["data_time"], values["retries"],
            values["memory"], values["records"], dict(self.learning_rates), unexplained,
        )  # fmt: skip

    # An interrupted interval continues in the next attempt, so that its means are the same.
    def state(self) -> dict[str, Any]:
        columns: Any = zip(*measured(self._steps), strict=True) if self._steps else [()] * 7
        losses, norms, records, step_times, data_times, retries, memory = columns
        return {
            "losses": list(losses),
            "norms": [norm for norm in norms if norm is not None],
            "records": [each for each in records if each is not None],
            "times": list(zip(step_times, data_times, strict=True)),
            "retries": sum(retries),
            "memory": [peak for peak in memory if peak is not None],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        rows = zip_longest(state["losses"], state["norms"], state["records"], state["times"], state["memory"])
        self._steps = [
            {MEASURED: (loss, norm, records, *times, 0 if i else state["retries"], memory)}
            for i, (loss, norm, records, times, memory) in enumerate(rows)
        ]


Measured = tuple[float, float | None, Records | None, float, float, int, float | None]
"""A step's values on the host: loss, grad_norm, records, step_time, data_time, retries, memory. A plain tuple: one is
made each step."""


def measured(steps: Sequence[dict[str, Any]]) -> list[Measured]:
    """The values of each `step_info`. They are read from the device once, whichever hook is the first to ask."""
    try:
        return [info[MEASURED] for info in steps]
    except KeyError:
        _measure([info for info in steps if MEASURED not in info])
        return [info[MEASURED] for info in steps]


def _measure(steps: Sequence[dict[str, Any]]) -> None:
    losses: list[Any] = [each[0] if len(each := info["loss"]) == 1 else torch.stack(each).mean() for info in steps]
    norms = [info["grad_norm"] for info in steps]
    if losses[0].device.type != "cpu":
        losses, read = _numbers(losses), iter(_numbers([norm for norm in norms if norm is not None]))
        norms = [norm if norm is None else next(read) for norm in norms]
    for info, loss, norm in zip(steps, losses, norms, strict=True):
        # As python floats: a mean of tensors would round otherwise once some have been restored from a checkpoint.
        records, data_times = info["records"], info["data_time"]
        info[MEASURED] = (
            float(loss),
            norm if norm is None else float(norm),
            to_numbers(_mean_records(records)) if any(records) else None,
            info["step_time"],
            data_times[0] if len(data_times) == 1 else sum(data_times),
            info["non_finite_grad_retry_count"],
            info.get("max_memory"),
        )


def means(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of consecutive steps. Another hook that asks for the same steps gets the same dict."""
    by_count = infos[-1].setdefault(MEANS, {})
    if len(infos) not in by_count:
        by_count[len(infos)] = _means(measured(infos))
    return by_count[len(infos)]


def _means(steps: Sequence[Measured]) -> dict[str, Any]:
    count, norms, all_records = len(steps), 0, []
    total = total_norm = step_time = data_time = retries = 0.0
    memory: float | None = None
    for loss, norm, records, seconds, data_seconds, retried, peak in steps:
        total += loss
        step_time += seconds
        data_time += data_seconds
        retries += retried
        if norm is not None:
            norms += 1
            total_norm += norm
        if records:
            all_records.append(records)
        if peak is not None and (memory is None or peak > memory):
            memory = peak
    return {
        "loss": total / count,
        "grad_norm": total_norm / norms if norms else None,
        "step_time": step_time / count,
        "data_time": data_time / count,
        "retries": retries / count,
        "memory": memory,
        "records": key_average(all_records) if all_records else {},
        "unexplained": 0 if math.isfinite(total) else _unexplained(steps),
    }


def _unexplained(steps: Sequence[Measured]) -> int:
    return sum(not math.isfinite(loss) and math.isfinite(norm or 0.0) for loss, norm, *_ in steps)


def _mean_records(records: list[Records]) -> Records:
    return records[0] if len(records) == 1 else key_average(records)


def _numbers(values: list[Any]) -> list[float]:
    """On the host, in one transfer if all are on a device."""
    if values and all(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in values):
        numbers: list[float] = torch.stack([value.float() for value in values]).tolist()
        return numbers
    return list(map(float, values))


def _over_ranks(gathered: list[dict[str, Any]]) -> dict[str, Any]:
    """Every rank has equally many samples, so the mean of the means is the mean; times as well; memory is the most."""
    memories = [values["memory"] for values in gathered if values["memory"] is not None]
    norms = [values["grad_norm"] for values in gathered]
    merged = key_average([{k: v for k, v in values.items() if k not in ("memory", "grad_norm")} for values in gathered])
    merged["memory"] = max(memories) if memories else None
    merged["grad_norm"] = None if None in norms else sum(norms) / len(norms)
    merged.setdefault("records", {})
    return merged
