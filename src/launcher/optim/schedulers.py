"""Learning-rate schedules, as factors of each group's own learning rate by optimizer step.

Step s counts from 0. The first update is made with the factor of s = 0, the last one with the
factor of s = N - 1, where N is `max_steps`. Every schedule begins with a warm-up of W steps
(`constant` excepted), whose factor is never 0 (a step that changes nothing) and which reaches 1 at
s = W, as in nanoGPT's and torchtitan's code:

    f(s) = (s + 1) / (W + 1)                                    for s < W

Decay then runs over p = min((s - W) / (N - W), 1), so it would arrive at `min_lr_ratio` at s = N,
one step after the last. Beyond N the rate stays constant.

W is `warmup_steps`, or `warmup_ratio` of max_steps; only one may be set. If neither is (None), W is
5 % of max_steps, since AdamW's second moments are poor estimates in its first steps, and damage
there is not repaired (Ma and Yarats 2021, arXiv:1910.04209). With `warmup_steps=0` there is no
warm-up. Both, or more steps than the run has, are a ConfigError.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from launcher.config.messages import describe_type
from launcher.config.schema.checks import warmup_issue
from launcher.errors import ConfigError, TrainingError
from launcher.optim.arguments import has_required_argument
from launcher.optim.rates import common_rates
from launcher.types import Fraction, NonNegativeInt, PositiveInt

matters_from = {"*": common_rates}
DEFAULT_WARMUP_RATIO = 0.05
Factor = Callable[[int], float]


def cosine(
    optimizer: Optimizer,
    *,
    max_steps: PositiveInt,
    warmup_steps: NonNegativeInt | None = None,
    warmup_ratio: Fraction | None = None,
    min_lr_ratio: Fraction = 0.0,
) -> LambdaLR:
    """Decay by a half cosine: m + (1 - m) (1 + cos(pi p)) / 2, with m = min_lr_ratio.

    See Loshchilov and Hutter 2017, arXiv:1608.03983.
    """
    warmup = _warmup(max_steps, warmup_steps, warmup_ratio)
    return _add_warmup(
        optimizer,
        warmup,
        lambda step: _half_cosine(_progress(step, warmup, max_steps)),
        min_lr_ratio,
    )


def linear(
    optimizer: Optimizer,
    *,
    max_steps: PositiveInt,
    warmup_steps: NonNegativeInt | None = None,
    warmup_ratio: Fraction | None = None,
    min_lr_ratio: Fraction = 0.0,
) -> LambdaLR:
    """Decay linearly: m + (1 - m) (1 - p), with m = min_lr_ratio.

    See Defazio et al. 2023, arXiv:2310.07831.
    """
    warmup = _warmup(max_steps, warmup_steps, warmup_ratio)
    return _add_warmup(
        optimizer, warmup, lambda step: 1 - _progress(step, warmup, max_steps), min_lr_ratio
    )


def constant(optimizer: Optimizer) -> LambdaLR:
    """Keep the learning rate."""
    return _add_warmup(optimizer, 0, lambda step: 1.0)


def constant_with_warmup(
    optimizer: Optimizer,
    *,
    max_steps: PositiveInt,
    warmup_steps: NonNegativeInt | None = None,
    warmup_ratio: Fraction | None = None,
) -> LambdaLR:
    """Warm up, then keep the learning rate. `max_steps` is used for the warm-up only."""
    warmup = _warmup(max_steps, warmup_steps, warmup_ratio)
    return _add_warmup(optimizer, warmup, lambda step: 1.0)


def wsd(
    optimizer: Optimizer,
    *,
    max_steps: PositiveInt,
    warmup_steps: NonNegativeInt | None = None,
    warmup_ratio: Fraction | None = None,
    decay_ratio: Fraction = 0.2,
    decay: Literal["linear", "cosine", "sqrt"] = "sqrt",
    min_lr_ratio: Fraction = 0.0,
) -> LambdaLR:
    """Warm-up, stable, decay: 1 until the last D = decay_ratio N steps, then m + (1 - m) g(q).

    Here q = (s - (N - D)) / D, and g(q) = 1 - q (linear), (1 + cos(pi q)) / 2 (cosine) or 1 -
    sqrt(q) (sqrt). See Hu et al. 2024, arXiv:2404.06395. Haegele et al. (2024, arXiv:2405.18392)
    found 1 - sqrt over a fifth of the run to be as good as cosine.
    """
    warmup = _warmup(max_steps, warmup_steps, warmup_ratio)
    decay_steps = round(decay_ratio * max_steps)
    if warmup + decay_steps > max_steps:
        raise ConfigError(
            f"scheduler.decay_ratio={decay_ratio}: {decay_steps} steps of decay and {warmup} of"
            f" warm-up are more than the run's {max_steps} steps; use"
            f" scheduler.decay_ratio={(max_steps - warmup) / max_steps:.3g} or less."
        )
    start = max_steps - decay_steps
    shape = SHAPES[decay]
    return _add_warmup(
        optimizer, warmup, lambda step: shape(_progress(step, start, max_steps)), min_lr_ratio
    )


def follow_groups(scheduler: LRScheduler | None) -> None:
    """Let a schedule multiply the rates of groups that were added to its optimizer."""
    if not isinstance(scheduler, LRScheduler) or needs_metric(scheduler):
        return
    groups = scheduler.optimizer.param_groups
    if not isinstance(scheduler, LambdaLR) or len(set(scheduler.lr_lambdas)) != 1:
        raise TrainingError(
            f"The optimizer has {len(groups)} parameter groups, since a hook has added some, which"
            f" {type(scheduler).__name__} does not support; use scheduler=cosine, linear, wsd or"
            " constant, or make all groups at the start and freeze their parameters."
        )
    factor = scheduler.lr_lambdas[0]
    add_factors(scheduler, len(groups))
    for group in groups[len(scheduler.base_lrs) :]:
        rate = group.setdefault("initial_lr", float(group["lr"]))
        scheduler.base_lrs.append(rate)
        set_rate(group, rate * factor(scheduler.last_epoch))


def add_factors(scheduler: LambdaLR, count: int) -> None:
    """Use the schedule's last factor for further groups."""
    factors = scheduler.lr_lambdas
    factors += factors[-1:] * (count - len(factors))


def set_rate(group: dict[str, Any], rate: Any) -> None:
    lr = group["lr"]
    group["lr"] = lr.fill_(rate) if isinstance(lr, Tensor) else rate


def current_rates(optimizer: Optimizer) -> list[float | Tensor]:
    """Return the groups' learning rates; tensors are copied, since they change in place."""
    groups = optimizer.param_groups
    return [rate.clone() if isinstance(rate := group["lr"], Tensor) else rate for group in groups]


def needs_metric(scheduler: object) -> bool:
    return has_required_argument(type(scheduler), "step")


def check_scheduler(scheduler: object, where: str) -> None:
    """Check that training can step, save and load a schedule."""
    if not isinstance(scheduler, LRScheduler):
        raise ConfigError(
            f"{where}: should make a torch.optim.lr_scheduler.LRScheduler; it made"
            f" {describe_type(scheduler)}. Use scheduler=cosine, linear or wsd, a class of"
            " torch.optim.lr_scheduler, or a LambdaLR with the same factors."
        )


def _warmup(total: int, steps: int | None, ratio: float | None) -> int:
    """Return the warm-up steps: `steps` if set, else `ratio` of `total`, rounded down."""
    issue = warmup_issue(steps, ratio, total)
    if issue:
        raise ConfigError(str(issue))
    if steps is None and ratio is None:
        ratio = DEFAULT_WARMUP_RATIO
    # 1e-9 is added because 0.29 * 100 is 28.999999999999996.
    return steps or int((ratio or 0.0) * total + 1e-9)


def _add_warmup(optimizer: Optimizer, warmup: int, after: Factor, floor: float = 0.0) -> LambdaLR:
    """Warm up, then follow a factor that falls from 1 to 0, or to the floor."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return floor + (1 - floor) * after(step)

    return LambdaLR(optimizer, factor)


def _progress(step: int, start: int, end: int) -> float:
    """Return 0 up to `start`, 1 from `end` on, linear between them."""
    return min(max(step - start, 0) / max(end - start, 1), 1.0)


def _half_cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda q: 1 - q,
    "cosine": _half_cosine,
    "sqrt": lambda q: 1 - math.sqrt(q),
}
