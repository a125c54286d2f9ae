"""The settings of a search, `hpo.*`, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.config.messages import show
from launcher.config.schema.metric_direction import direction
from launcher.config.tree import get
from launcher.errors import ConfigError
from launcher.runs.trials import Goal

HALVING = ("asha", "hyperband")
"""Pruners that pause trials at rungs."""
FIXED_SPACE = ("grid", "qmc")
"""Samplers with one order of values for the whole study."""
SLURM = "launcher.dispatch.slurm.SlurmDispatch"
DIRECTIONS = ("auto", "minimize", "maximize")


@dataclass(frozen=True)
class Settings(Goal):
    """`hpo.*` of a configuration."""

    max_failures: float = 1
    n_trials: int = 50
    timeout: float | None = None
    parallel: int = 1
    sampler: str = "tpe"
    sampler_options: Mapping[str, object] = field(default_factory=dict)
    pruner: str = "none"
    reduction_factor: int = 3
    min_steps: int | None = None
    n_startup_trials: int = 5
    warmup_steps: int = 0
    enqueue: Sequence[Mapping[str, object]] = ()
    seed: int = 0
    name: str | None = None


def settings_of(config: dict[str, Any]) -> Settings:
    """Read the settings of a search from a valid configuration."""
    keys = {
        key: value
        for key, value in config["hpo"].items()
        if key not in ("space", "objective", "direction")
    }
    objectives = _names(config["hpo"]["objective"])
    if keys["value"] is None:
        keys["value"] = "best" if len(objectives) == 1 else "last"
    if keys["pruner"] == "auto":
        # On a cluster, a trial that asha promotes would wait in the queue again.
        one = "median" if get(config, "dispatch._target_") == SLURM else "asha"
        keys["pruner"] = one if len(objectives) == 1 else "none"
    if len(objectives) > 1:
        if keys["pruner"] != "none":
            raise ConfigError(
                f"hpo.pruner={keys['pruner']}: needs one objective; use hpo.pruner=none."
            )
        if keys["value"] == "best":
            raise ConfigError(
                "hpo.value=best: needs one objective; of several, the last values are used."
            )
    directions = _directions(config["hpo"]["direction"], objectives)
    settings = Settings(objectives=objectives, directions=directions, **keys)
    _check(settings, config)
    return settings


def _check(settings: Settings, config: dict[str, Any]) -> None:
    if settings.pruner in HALVING and get(config, "trainer.max_epochs") is not None:
        raise ConfigError(
            f"hpo.pruner={settings.pruner}: needs trainer.max_steps instead of trainer.max_epochs."
        )
    if settings.pruner in HALVING and not get(config, "hooks.checkpointing"):
        raise ConfigError(
            f"hpo.pruner={settings.pruner}: a pause needs a checkpoint; keep hooks.checkpointing."
        )


def _names(value: str | list[str]) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"hpo.objective={show(value)}: should be one or several metrics; e.g. val/loss."
        )
    for name in names:
        if "/" not in name:
            raise ConfigError(
                f"hpo.objective={name}: a metric has a group; e.g. val/{name} or train/{name}."
            )
    return names


def _directions(value: str | list[str], objectives: Sequence[str]) -> tuple[str, ...]:
    directions = [value] * len(objectives) if isinstance(value, str) else list(value)
    if len(directions) != len(objectives) or not set(directions) <= set(DIRECTIONS):
        raise ConfigError(
            f"hpo.direction={show(value)}: should be one of {', '.join(DIRECTIONS)} for each"
            " objective."
        )
    return tuple(
        _by_name(name) if goal == "auto" else goal
        for name, goal in zip(objectives, directions, strict=True)
    )


def _by_name(objective: str) -> str:
    mode = direction(objective)
    if mode is None:
        raise ConfigError(
            f"hpo.objective={objective}: the name does not show whether less or more is better; set"
            " hpo.direction=minimize or hpo.direction=maximize."
        )
    return f"{mode}imize"
