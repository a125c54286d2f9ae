import math

import pytest
import torch

from launcher.errors import ConfigError
from launcher.optim import schedulers

LR = 2.0


def optimizer(*rates):
    return torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in rates or (LR,)]
    )


def trace(make, steps, **options):
    """The learning rate that each step is made with."""
    parts = optimizer()
    scheduler = make(parts, **options)
    rates = []
    for _ in range(steps):
        rates.append(parts.param_groups[0]["lr"])
        parts.step()
        scheduler.step()
    return rates


DECAYING = [schedulers.cosine, schedulers.linear, schedulers.wsd]
WARMED = [*DECAYING, schedulers.constant_with_warmup]


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (schedulers.constant, {}, [2, 2, 2]),
        (schedulers.constant_with_warmup, {"max_steps": 8, "warmup_steps": 3}, [0.5, 1, 1.5, 2, 2]),
        (schedulers.linear, {"max_steps": 4, "warmup_steps": 0}, [2, 1.5, 1, 0.5]),
        (
            schedulers.linear,
            {"max_steps": 8, "warmup_ratio": 0.5, "min_lr_ratio": 0.5},
            [0.4, 0.8, 1.2, 1.6, 2, 1.75, 1.5, 1.25],
        ),
        (
            schedulers.cosine,
            {"max_steps": 6, "warmup_steps": 3, "min_lr_ratio": 0.2},
            [0.5, 1, 1.5, 2, 1.6, 0.8],
        ),
        (
            schedulers.wsd,
            {"max_steps": 8, "warmup_steps": 1, "decay_ratio": 0.5, "decay": "linear"},
            [1, 2, 2, 2, 2, 1.5, 1, 0.5],
        ),
        (
            schedulers.wsd,
            {"max_steps": 8, "warmup_steps": 0, "decay_ratio": 0.5, "min_lr_ratio": 0.1},
            [2] * 5 + [0.2 + 1.8 * (1 - math.sqrt(part)) for part in (0.25, 0.5, 0.75)],
        ),
        (
            schedulers.wsd,
            {"max_steps": 4, "warmup_steps": 0, "decay_ratio": 1.0, "decay": "cosine"},
            [2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5)],
        ),
    ],
)
def test_rates(make, options, expected):
    assert trace(make, len(expected), **options) == pytest.approx(expected)


@pytest.mark.parametrize("make", DECAYING)
def test_beyond_the_last_step_it_stays_at_the_end(make):
    rates = trace(make, 14, max_steps=10, warmup_steps=2, min_lr_ratio=0.1)
    assert min(rates[:10]) > LR * 0.1
    assert rates[10:] == pytest.approx([LR * 0.1] * 4)


@pytest.mark.parametrize("make", WARMED)
def test_default_warmup_is_a_twentieth(make):
    rates = trace(make, 41, max_steps=100)
    assert rates[:6] == pytest.approx([LR * (s + 1) / 6 for s in range(6)])
    assert trace(make, 1, max_steps=100, warmup_steps=0)[0] == LR
    assert trace(make, 1, max_steps=100, warmup_ratio=0.0)[0] == LR
    assert trace(make, 1, max_steps=100, warmup_ratio=0.29)[0] == LR / 30
    assert trace(make, 1, max_steps=25, warmup_ratio=0.1)[0] == LR / 3


def test_a_wrong_warmup_is_rejected():
    with pytest.raises(ConfigError, match=r"scheduler\.warmup_steps=101: .* only 100 steps"):
        schedulers.cosine(optimizer(), max_steps=100, warmup_steps=101)
    with pytest.raises(ConfigError, match=r"scheduler\.decay_ratio=0\.6.*=0\.5 or less"):
        schedulers.wsd(optimizer(), max_steps=100, warmup_steps=50, decay_ratio=0.6)
