"""Means over the steps of an interval, for the progress and logging hooks."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from launcher.hooks.base import BaseHook, Records, TrainerView
from launcher.hooks.records import key_average, to_numbers
from launcher.run import ranks
from launcher.types import PositiveInt


@dataclass(frozen=True)
class Stats:
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
    """Collects each step's tensors and reads them once an interval: until then the host does not wait for the device.

    Args:
        report: called with the trainer and the means, after every `interval` steps and after the last.
        interval: in optimizer steps.
        sync: means over all ranks, not this one's.
    """

    def __init__(self, report: Callable[[TrainerView, Stats], None], interval: PositiveInt, sync: bool):
        self.report, self.interval, self.sync = report, interval, sync
        self.learning_rates: dict[str, float] = {}
        self._clear()

    def _clear(self) -> None:
        self._losses: list[Any] = []
        self._norms: list[Any] = []
        self._records: list[Records] = []
        self._times: list[tuple[float, float]] = []
        self._retries = 0
        self._memory: list[float] = []

    def on_after_step(self, trainer: TrainerView) -> None:
        info = trainer.step_info
        losses = info["loss"]
        self._losses.append(losses[0] if len(losses) == 1 else torch.stack(losses).mean())
        if info["grad_norm"] is not None:
            self._norms.append(info["grad_norm"])
        if records := info["records"]:
            self._records.append(records[0] if len(records) == 1 else key_average(records))
        self._times.append((info["step_time"], sum(info["data_time"])))
        self._retries += info["non_finite_grad_retry_count"]
        if "max_memory" in info:
            self._memory.append(info["max_memory"])
        if trainer.step % self.interval == 0 or trainer.is_last_step:
            self._report(trainer)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if self._times and trainer.is_last_step:  # a hook after this one has ended the training
            self._report(trainer)

    def _report(self, trainer: TrainerView) -> None:
        groups, rates = trainer.optimizer.param_groups, trainer.step_info["lr"]
        self.learning_rates = {
            str(group.get("name", f"group_{i}")): float(rate)
            for i, (group, rate) in enumerate(zip(groups, rates, strict=False))  # a group may have been added since
        }
        stats = self._mean()
        self._clear()
        self.report(trainer, stats)

    def _mean(self) -> Stats:
        steps = len(self._times)
        losses, norms = _numbers(self._losses), _numbers(self._norms)
        unexplained = sum(
            not math.isfinite(loss) and math.isfinite(norm)
            for loss, norm in zip(losses, norms or [0.0] * len(losses), strict=False)
        )
        values: dict[str, Any] = {
            "loss": sum(losses) / len(losses),
            "grad_norm": sum(norms) / len(norms) if norms else None,
            "step_time": sum(step for step, _ in self._times) / steps,
            "data_time": sum(data for _, data in self._times) / steps,
            "retries": self._retries / steps,
            "memory": max(self._memory) if self._memory else None,
            # As python floats: a mean of tensors would round otherwise once some have been restored from a checkpoint.
            "records": key_average([to_numbers(records) for records in self._records]),
        }
        if self.sync and ranks.world_size() > 1:
            values = _over_ranks(ranks.all_gather(values))
        return Stats(
            steps, values["loss"], values["grad_norm"], values["step_time"], values["data_time"], values["retries"],
            values["memory"], values["records"], dict(self.learning_rates), unexplained,
        )  # fmt: skip

    # An interrupted interval continues in the next attempt, so that its means are the same.
    def state(self) -> dict[str, Any]:
        return {
            "losses": _numbers(self._losses),
            "norms": _numbers(self._norms),
            "records": [to_numbers(records) for records in self._records],
            "times": list(self._times),
            "retries": self._retries,
            "memory": list(self._memory),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._losses, self._norms = list(state["losses"]), list(state["norms"])
        self._records, self._times = list(state["records"]), [tuple(pair) for pair in state["times"]]
        self._retries, self._memory = state["retries"], list(state["memory"])


def _numbers(values: list[Any]) -> list[float]:
    """On the host, in double: the same whether some were restored from a checkpoint or not."""
    if values and all(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in values):
        numbers: list[float] = torch.stack([value.float() for value in values]).tolist()
        return numbers
    return [float(value) for value in values]


def _over_ranks(gathered: list[dict[str, Any]]) -> dict[str, Any]:
    """Every rank has equally many samples, so the mean of the means is the mean; times as well; memory is the most."""
    memories = [values["memory"] for values in gathered if values["memory"] is not None]
    norms = [values["grad_norm"] for values in gathered]
    merged = key_average([{k: v for k, v in values.items() if k not in ("memory", "grad_norm")} for values in gathered])
    merged["memory"] = max(memories) if memories else None
    merged["grad_norm"] = None if None in norms else sum(norms) / len(norms)
    merged.setdefault("records", {})
    return merged
