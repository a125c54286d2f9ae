"""Restore a schedule from a checkpoint, also if its arguments have changed since.

A class of torch keeps its arguments and its progress in one state, so loading that state would also
bring back the saved arguments. Many classes compute a rate from the rate before it. So the
state before the first step is stored next to the state. If it has changed, a schedule that counts
steps is stepped again from its beginning: it then has the rates of a run that had these arguments
from the first step on. A schedule that follows a metric keeps its counters, and takes what has
changed.
"""

import warnings
from collections.abc import Collection
from copy import deepcopy
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, LRScheduler, OneCycleLR

from launcher.errors import ConfigError
from launcher.optim.schedulers import (
    add_factors,
    follow_groups,
    needs_metric,
    set_rate,
)

State = dict[str, Any]
SCHEDULED_KEYS = ("momentum", "betas")
"""Keys of a parameter group that torch's schedules set next to the learning rate."""

RATE_ATTRIBUTES = ("base_lrs", "_last_lr")
"""Attributes of torch's schedules that follow from the optimizer's rates."""
SETS_RATES = (CyclicLR, OneCycleLR)
"""Schedules whose arguments have the rates."""


class ScheduleState:
    """An optimizer's schedule, or None, and its parameter groups, before the first step."""

    def __init__(self, optimizer: Optimizer, scheduler: LRScheduler | None):
        self.optimizer = optimizer
        self.scheduler: Any = scheduler
        self._groups: list[State] = [_copy_group(group) for group in optimizer.param_groups]
        self.arguments: State = {"class": type(scheduler).__qualname__}
        # Another object may be a schedule, if its `step` needs no arguments.
        if isinstance(scheduler, LRScheduler):
            self.arguments["state"] = deepcopy(scheduler.state_dict())
            self.arguments["rates"] = [
                float(group["initial_lr" if "initial_lr" in group else "lr"])
                for group in self._groups
            ]

    def restore(self, training_state: State, updates: int, takes_rates: bool) -> None:
        """Restore the schedule and the rates, after the optimizer.

        A schedule that replaces another kind of schedule has made `updates`. A fork takes the
        groups' own rates, a resume keeps the saved ones.
        """
        saved = training_state["lr_scheduler"]
        before = training_state["lr_arguments"]
        is_same_class = before["class"] == self.arguments["class"]
        if is_same_class and not takes_rates and not isinstance(self.scheduler, SETS_RATES):
            before = self._with_own_rates(before)
        if not is_same_class:
            self._set_built((*SCHEDULED_KEYS, "lr") if self.scheduler is None else SCHEDULED_KEYS)
        if self.scheduler is not None and saved is not None and _is_equal(before, self.arguments):
            self._load(saved)
        elif not isinstance(self.scheduler, LRScheduler):
            return
        elif needs_metric(self.scheduler):
            self._keep_counters(saved if saved and is_same_class else {}, before)
        else:
            self._step_again((saved or {}).get("last_epoch", updates) if is_same_class else updates)

    def _load(self, saved: State) -> None:
        if isinstance(self.scheduler, LambdaLR):
            # A hook has added groups to the optimizer.
            add_factors(self.scheduler, len(saved["base_lrs"]))
            # The functions are not in the state, and may have changed.
            factors = [function(saved["last_epoch"]) for function in self.scheduler.lr_lambdas]
            rates = [rate * factor for rate, factor in zip(saved["base_lrs"], factors, strict=True)]
            if rates != saved["_last_lr"]:
                saved = saved | {"_last_lr": rates}
                for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                    set_rate(group, rate)
        self.scheduler.load_state_dict(deepcopy(saved))

    def _with_own_rates(self, before: State) -> State:
        """Put this schedule's rates in place of the saved ones, so that they count as unchanged."""
        own = self.arguments
        if "state" not in own:
            return before
        rates = {key: own["state"][key] for key in RATE_ATTRIBUTES if key in own["state"]}
        return before | {"rates": own["rates"], "state": before["state"] | rates}

    def _set_built(self, keys: Collection[str]) -> None:
        for group, built in zip(self.optimizer.param_groups, self._groups, strict=False):
            _set(group, {key: built[key] for key in built.keys() & keys})

    def _keep_counters(self, saved: State, before: State) -> None:
        """Take the saved values of all arguments that have not changed, and the saved rates."""
        own = self.arguments["state"]
        counters = {
            key: value
            for key, value in saved.items()
            if _is_equal(before["state"].get(key), own.get(key))
        }
        self.scheduler.load_state_dict(deepcopy(own) | counters)
        rates: list[float] = self.arguments["rates"]
        all_rates = zip(
            self.optimizer.param_groups, rates, before.get("rates", rates), strict=False
        )
        for group, rate, previous in all_rates:
            if rate != previous and previous:
                set_rate(group, group["lr"] * (rate / previous))

    def _step_again(self, count: int) -> None:
        """Step the schedule from its beginning; what it does not set is as it was loaded."""
        groups = self.optimizer.param_groups
        defaults = getattr(self.optimizer, "defaults", {})
        loaded = [_copy_group(group) for group in groups]
        for group, built in zip(groups, self._groups, strict=False):
            _set(group, built)
        self.scheduler.load_state_dict(deepcopy(self.arguments["state"]))
        first = 0
        if isinstance(self.scheduler, LambdaLR) and count:
            # A function of the step needs only the last one.
            first = count - 1
            self.scheduler.load_state_dict(
                self.scheduler.state_dict() | {"last_epoch": first, "_step_count": count}
            )
        if len(groups) > len(self._groups):
            follow_groups(self.scheduler)
        with warnings.catch_warnings():
            # Torch warns of a schedule that is stepped before the optimizer.
            warnings.simplefilter("ignore")
            for number in range(first, count):
                self._step(number + 1)
        for group, built, saved in zip(groups, self._groups, loaded, strict=False):
            ours = {key for key in built if key not in defaults or group[key] is not built[key]}
            _set(group, {key: saved[key] for key in saved.keys() - ours - {"lr"}})

    def _step(self, number: int) -> None:
        try:
            self.scheduler.step()
        # A schedule of the user may fail in any way.
        except Exception as error:
            raise ConfigError(
                f"scheduler: {type(self.scheduler).__name__} has no rate after {number} updates,"
                f" which the checkpoint has ({error}); give it arguments for a longer run."
            ) from error


def _is_equal(one: object, other: object) -> bool:
    try:
        return one == other
    # A tensor or an array in it is compared by elements.
    except (RuntimeError, ValueError):
        return False


def _copy_group(group: State) -> State:
    return {key: deepcopy(value) for key, value in group.items() if key != "params"}


def _set(group: State, values: State) -> None:
    for key, value in values.items():
        if key == "lr":
            set_rate(group, value)
        else:
            group[key] = value
