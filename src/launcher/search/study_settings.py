"""The settings of a search, `hpo.*`, checked."""

from dataclasses import dataclass

from launcher.config.schema.checks import checkpointing
from launcher.config.schema.declared import declared
from launcher.config.schema.metric_direction import direction
from launcher.config.settings import HpoSettings
from launcher.config.tree import Tree, get
from launcher.errors import ConfigError
from launcher.runs.trials import Direction, Goal

HALVING = ("asha", "hyperband")
"""Pruners that pause trials at rungs."""
JOBS = "jobs"
"""The declaration of a dispatch that trains the trials of a search as jobs."""


@dataclass(frozen=True)
class Settings(HpoSettings, Goal):
    """`hpo.*` of a configuration."""

    direction: Direction = "minimize"


def settings_of(config: Tree) -> Settings:
    """Read the settings of a search from a valid configuration."""
    keys = dict(config["hpo"])
    if "/" not in keys["objective"]:
        raise ConfigError(
            f"hpo.objective={keys['objective']}: a metric has a group; e.g. val/loss or train/loss."
        )
    if keys["direction"] == "auto":
        keys["direction"] = _direction_by_name(keys["objective"])
    if keys["pruner"] == "auto":
        # On a cluster, a trial that asha promotes would wait in the queue again.
        keys["pruner"] = (
            "median" if declared(config["dispatch"]["_target_"], "trials") == JOBS else "asha"
        )
    settings = Settings(**keys)
    if settings.pruner not in HALVING:
        return settings
    key = f"hpo.pruner={settings.pruner}"
    if get(config, "trainer.max_epochs") is not None:
        raise ConfigError(f"{key}: needs trainer.max_steps instead of trainer.max_epochs.")
    if checkpointing(config.get("hooks")) is None:
        raise ConfigError(f"{key}: a pause needs a checkpoint; keep hooks.checkpointing.")
    return settings


def _direction_by_name(objective: str) -> str:
    mode = direction(objective)
    if mode is None:
        raise ConfigError(
            f"hpo.objective={objective}: the name does not show whether less or more is better; set"
            " hpo.direction=minimize or hpo.direction=maximize."
        )
    return f"{mode}imize"
