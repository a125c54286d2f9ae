"""The rates of a schedule, computed without training."""

import warnings
from collections.abc import Iterator
from itertools import count, islice

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from launcher.config.construct import target_object
from launcher.config.matters_from import Node, Pair
from launcher.config.tree import walk
from launcher.optim.arguments import has_required_argument

KNOWN = ("launcher.optim.schedulers.", "torch.optim.lr_scheduler.")
"""The schedules that depend on the step alone. Another one could be any code."""
SCHEDULED = ("lr", "momentum", "betas")
"""The keys of a parameter group that schedules change."""
SOME_RATES = (1.0, 1e-3, 0.37)
"""Rates that are compared next to the configured ones, which a class may have as its default."""


def common_rates(one: Node | None, other: Node | None, pair: Pair) -> int:
    """Return the first steps in which two schedules give the same rates.

    It is 0 for schedules that follow a metric, and for schedules of several optimizers.
    """
    optimizer = pair.one["optimizer"]
    if one is None or other is None or "parts" in optimizer or not (_known(one) and _known(other)):
        return 0
    limit = pair.steps_before_an_end
    # Either may be rejected, or have no rate after its own last step.
    try:
        with warnings.catch_warnings():
            # Torch warns of a schedule that is stepped before the optimizer.
            warnings.simplefilter("ignore")
            schedules = [_built(node, optimizer) for node in (one, other)]
            if _constants(schedules[0]) != _constants(schedules[1]):
                return 0
            pairs = islice(zip(*map(_rates, schedules), strict=True), limit)
            return next((step for step, (here, there) in enumerate(pairs) if here != there), limit)
    except Exception:
        return 0


def _known(node: Node) -> bool:
    targets = [str(value) for path, value in walk(node, lists=True) if path.endswith("_target_")]
    return len(targets) == 1 and targets[0].startswith(KNOWN)


def _built(node: Node, optimizer: Node) -> LRScheduler:
    """Build a schedule on an optimizer of numbers, with each rate that the real one may have."""
    rates = [value for path, value in walk(optimizer, lists=True) if path.endswith("lr")]
    groups = [{"params": [torch.zeros(1)], "lr": rate} for rate in (*rates, *SOME_RATES)]
    dummy = torch.optim.AdamW(groups)
    arguments = {key: value for key, value in node.items() if key[0] != "_"}
    scheduler = target_object(node["_target_"])(dummy, **arguments)
    if not isinstance(scheduler, LRScheduler) or has_required_argument(type(scheduler), "step"):
        raise TypeError(type(scheduler).__name__)
    return scheduler


def _constants(scheduler: LRScheduler) -> tuple[object, ...]:
    """Return the class of a schedule, and what it has set once in the parameter groups."""
    return type(scheduler), [
        {key: value for key, value in group.items() if key not in ("params", *SCHEDULED)}
        for group in scheduler.optimizer.param_groups
    ]


def _rates(scheduler: LRScheduler) -> Iterator[object]:
    """Yield the values of each step from the first one on, or the factors that they follow from."""
    if isinstance(scheduler, LambdaLR):
        factors = dict.fromkeys(scheduler.lr_lambdas)
        yield from ([factor(step) for factor in factors] for step in count())
    while True:
        yield [[group.get(key) for key in SCHEDULED] for group in scheduler.optimizer.param_groups]
        scheduler.step()
