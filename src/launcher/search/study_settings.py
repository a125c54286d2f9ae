"""The settings of a search, `hpo.*`, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.config.schema.metric_direction import direction
from launcher.config.tree import get
from launcher.errors import ConfigError
from launcher.runs.trials import Goal

HALVING = ("asha", "hyperband")
"""Pruners that pause trials at rungs."""
FIXED_SPACE = ("grid", "qmc")
"""Samplers with one order of values for the whole study."""
SLURM = "launcher.dispatch.slurm.SlurmDispatch"


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
    keys = {key: value for key, value in config["hpo"].items() if key != "space"}
    if "/" not in keys["objective"]:
        raise ConfigError(
            f"hpo.objective={keys['objective']}: a metric has a group; e.g. val/loss or train/loss."
        )
    if keys["direction"] == "auto":
        keys["direction"] = _direction_by_name(keys["objective"])
    if keys["pruner"] == "auto":
        # On a cluster, a trial that asha promotes would wait in the queue again.
        keys["pruner"] = "median" if get(config, "dispatch._target_") == SLURM else "asha"
    settings = Settings(**keys)
    if settings.pruner in HALVING and get(config, "trainer.max_epochs") is not None:
        raise ConfigError(
            f"hpo.pruner={settings.pruner}: needs trainer.max_steps instead of trainer.max_epochs."
        )
    if settings.pruner in HALVING and not get(config, "hooks.checkpointing"):
        raise ConfigError(
            f"hpo.pruner={settings.pruner}: a pause needs a checkpoint; keep hooks.checkpointing."
        )
    return settings


def _direction_by_name(objective: str) -> str:
    mode = direction(objective)
    if mode is None:
        raise ConfigError(
            f"hpo.objective={objective}: the name does not show whether less or more is better; set"
            " hpo.direction=minimize or hpo.direction=maximize."
        )
    return f"{mode}imize"
