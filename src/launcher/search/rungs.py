"""Successive halving by pauses.

At each rung a trial waits until it is among the best, and then its run resumes. ASHA (Li et al.
2020) has one bracket. Asynchronous Hyperband has several, which begin at later rungs.
"""

import math
from collections.abc import Sequence

from launcher.config.schema import metric_direction
from launcher.config.schema.declared import providing, setting
from launcher.config.schema.hook_dependencies import group_of
from launcher.config.tree import Tree
from launcher.errors import ConfigError
from launcher.runs.trials import Trial
from launcher.search.study_settings import HALVING, Settings

MAX_RUNGS = 4


def rungs_of(settings: Settings, config: Tree) -> list[int]:
    """The steps at which trials pause, in ascending order; none without halving."""
    if settings.pruner not in HALVING:
        return []
    max_steps = int(config["trainer"]["max_steps"])
    factor = settings.reduction_factor
    interval = interval_of(settings.objective, config)
    if settings.min_steps is None:
        steps = [max_steps / factor**k for k in range(1, MAX_RUNGS + 1)]
    else:
        steps = [settings.min_steps * factor**k for k in range(64)]
    # At a rung, there is a value to compare.
    rounded = {math.ceil(step / interval) * interval for step in steps}
    rungs = sorted(step for step in rounded if step < max_steps)
    if not rungs:
        raise ConfigError(
            f"hpo.pruner={settings.pruner}: a run of trainer.max_steps={max_steps} has no step to"
            " pause at; set hpo.min_steps and hooks.evaluation.interval to fewer steps."
        )
    return rungs


def interval_of(objective: str, config: Tree) -> int:
    """Steps between two values of a metric, or 1 if they are not known."""
    hooks = providing(config.get("hooks"), group_of(objective))
    interval = setting(hooks[0], "interval") if hooks else None
    if interval == 0:
        return int(config["trainer"]["max_steps"])
    return interval if isinstance(interval, int) else 1


def bracket_of(number: int, rungs: Sequence[int], settings: Settings) -> int:
    """Return the number of first rungs that a trial passes without a pause.

    Each bracket gets the same number of steps.
    """
    if settings.pruner != "hyperband":
        return 0
    highest = len(rungs)
    factor = settings.reduction_factor
    weights = [
        (highest + 1) / (highest - bracket + 1) * factor ** (highest - bracket)
        for bracket in range(highest + 1)
    ]
    counts = [0] * len(weights)
    bracket = 0
    for total in range(1, number + 2):
        due = [
            weight * total / sum(weights) - count
            for weight, count in zip(weights, counts, strict=True)
        ]
        bracket = due.index(max(due))
        counts[bracket] += 1
    return bracket


def next_rung(after: int, rungs: Sequence[int]) -> int | None:
    return next((rung for rung in rungs if rung > after), None)


def first_target(bracket: int, rungs: Sequence[int]) -> int | None:
    return rungs[bracket] if bracket < len(rungs) else None


def promotable(trials: Sequence[Trial], rungs: Sequence[int], settings: Settings) -> Trial | None:
    """Find a paused trial among the best 1/reduction_factor at its rung, later rungs first."""
    for rung in reversed(rungs):
        for bracket in sorted({trial.bracket for trial in trials}):
            ranking = rank_trials(
                [trial for trial in trials if trial.bracket == bracket], rung, settings
            )
            for trial in ranking[: len(ranking) // settings.reduction_factor]:
                if trial.target == rung and trial.status == "paused" and is_finite(trial, rung):
                    return trial
    return None


def find_best_paused(
    trials: Sequence[Trial], rungs: Sequence[int], settings: Settings
) -> Trial | None:
    """Return the best trial of the highest rung if it is paused: it trains to completion."""
    for rung in reversed(rungs):
        ranking = [trial for trial in rank_trials(trials, rung, settings) if is_finite(trial, rung)]
        if ranking:
            return ranking[0] if ranking[0].status == "paused" else None
    return None


def rank_trials(trials: Sequence[Trial], rung: int, settings: Settings) -> list[Trial]:
    """The trials that have reached a rung, the best one first."""
    arrived = [trial for trial in trials if trial.value_at(rung) is not None]
    return metric_direction.sort_best_first(
        arrived, lambda trial: trial.value_at(rung), settings.mode
    )


def is_finite(trial: Trial, rung: int) -> bool:
    value = trial.value_at(rung)
    return value is not None and math.isfinite(value)
