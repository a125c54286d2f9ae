"""The rates of a schedule, computed without training."""

import json
import logging
import warnings
from array import array
from functools import lru_cache
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from launcher.config.construct import target_object
from launcher.config.schema.matters_from import Pair, before_last_line
from launcher.config.schema.metric_direction import direction, is_better, without_noise
from launcher.config.tree import Node, walk

logger = logging.getLogger(__name__)
STEP_SCHEDULES = ("launcher.optim.schedulers.", "torch.optim.lr_scheduler.")
"""The schedules that depend on the step or a metric alone. Another one could be any code."""
SCHEDULED_KEYS = ("lr", "momentum", "betas")
"""The keys of a parameter group that schedules change."""
PROBE_RATES = (1.0, 1e-3, 0.37)
"""Rates that are compared next to the configured ones, which a class may have as its default."""


def common_rates(one: Node | None, other: Node | None, pair: Pair) -> int:
    """Return the first steps in which two schedules give the same rates."""
    optimizer = pair.one["optimizer"]
    limit = pair.steps_before_an_end
    if one is None or other is None or not (_is_known(one) and _is_known(other)):
        return 0
    try:
        with warnings.catch_warnings():
            # Torch warns of a schedule that is stepped before the optimizer.
            warnings.simplefilter("ignore")
            if "metric" in one:
                return _common_by_metric(one, other, pair)
            courses = [
                _course(*map(json.dumps, (node, optimizer)), tree["trainer"]["max_steps"] - 1)
                for node, tree in ((one, pair.one), (other, pair.other))
            ]
    # A schedule may reject its arguments with any error.
    except Exception:
        logger.debug("The rates of %s and %s are not compared", one, other, exc_info=True)
        return 0
    (constants, here), (others, there) = courses
    if constants != others or here.shape[1] != there.shape[1] or min(len(here), len(there)) < limit:
        return 0
    different = (here[:limit] != there[:limit]).any(1).nonzero()
    common = int(different[0]) if len(different) else limit
    # A hook that is called after a step sees the rate of the next one.
    return common - 1 if pair.has_own_hooks else common


@lru_cache(maxsize=64)
def _course(schedule: str, optimizer: str, steps: int) -> tuple[object, torch.Tensor]:
    """Return what a schedule has set once, and a row of what it sets for each step."""
    scheduler = _build(json.loads(schedule), json.loads(optimizer))
    constants = [
        {key: value for key, value in group.items() if key not in ("params", *SCHEDULED_KEYS)}
        for group in scheduler.optimizer.param_groups
    ]
    # Rates follow from the factors, which need no step.
    factors = dict.fromkeys(scheduler.lr_lambdas) if isinstance(scheduler, LambdaLR) else None
    values = array("d")
    row = list[float]()
    try:
        for step in range(steps):
            if step and factors is None:
                scheduler.step()
            row = _row(scheduler) if factors is None else [factor(step) for factor in factors]
            values.extend(row)
    # A schedule may have no rate after its own last step.
    except (ArithmeticError, LookupError, ValueError) as error:
        logger.debug("%s has %d rates: %s", schedule, len(values) // max(1, len(row)), error)
    return (type(scheduler), constants), torch.frombuffer(values, dtype=torch.float64).view(
        -1, len(row)
    )


def _is_known(node: Node) -> bool:
    targets = [str(value) for path, value in walk(node, lists=True) if path.endswith("_target_")]
    return len(targets) == 1 and targets[0].startswith(STEP_SCHEDULES)


def _build(node: Node, optimizer: Node) -> Any:
    """Build a schedule on an optimizer of numbers, with each rate that the real one may have."""
    rates = [value for path, value in walk(optimizer, lists=True) if path.endswith("lr")]
    groups = [{"params": [torch.zeros(1)], "lr": rate} for rate in (*rates, *PROBE_RATES)]
    arguments = {key: value for key, value in node.items() if key[0] != "_" and key != "metric"}
    scheduler = target_object(node["_target_"])(torch.optim.AdamW(groups), **arguments)
    if not isinstance(scheduler, LRScheduler):
        raise TypeError(type(scheduler).__name__)
    return scheduler


def _row(scheduler: LRScheduler) -> list[float]:
    """Return the values of the current step."""
    row: list[float] = []
    for group in scheduler.optimizer.param_groups:
        for value in (group[key] for key in SCHEDULED_KEYS if key in group):
            row.extend(value if isinstance(value, tuple) else [value])
    return row


def _common_by_metric(one: Node, other: Node, pair: Pair) -> int:
    """Return the steps before two schedules that follow a metric differ, in the logged lines."""
    metric = one["metric"]
    chosen = [node.get("mode", "auto") for node in (one, other)]
    modes = [direction(metric) if mode == "auto" else mode for mode in chosen]
    if other.get("metric") != metric or modes[0] != modes[1] or modes[0] is None:
        return 0
    mode = modes[0]
    best = None
    both = [_build({**node, "mode": mode}, pair.one["optimizer"]) for node in (one, other)]
    arguments = {key for key in vars(both[0]) if len({str(vars(each)[key]) for each in both}) > 1}
    for line in pair.lines():
        if metric not in line:
            continue
        latest = float(line[metric])
        for scheduler in both:
            scheduler.step(without_noise(latest, best, mode))
        best = latest if is_better(latest, best, mode) else best
        states = [_counters(scheduler, arguments) for scheduler in both]
        if states[0] != states[1]:
            return int(line["step"]) - 1
    return before_last_line(one, other, pair)


def _counters(scheduler: LRScheduler, arguments: set[str]) -> list[object]:
    values = {
        key: value
        for key, value in vars(scheduler).items()
        if key not in arguments and not isinstance(value, Optimizer)
    }
    return [values, _row(scheduler)]
