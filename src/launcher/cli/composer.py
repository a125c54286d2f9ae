"""Composes the jobs of a sweep, most of which differ only in a few values."""

import hashlib
from collections.abc import Sequence

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf

from launcher.config.compositions import Compositions, parse
from launcher.config.diagnose import apply_to_groups
from launcher.config.lookup import Runs, name_run, news

NOT_IN_NAME = ("tracker", "dispatch", "hydra", "paths", "device", "run.resume")


class Composer:
    """Composes the jobs of a sweep, one composition for the jobs that choose the same groups."""

    def __init__(self, loader: ConfigLoader, master: DictConfig, runs: Runs | None = None):
        self.loader = loader
        self.sweep = sweep_name(master)
        self.continued: dict[str, str] = {}
        """Keys of each run, by its id, that are new in the equivalent configuration under which it
        resumes."""
        self._runs = runs or Runs()
        self._compositions = Compositions(
            lambda overrides: loader.load_sweep_config(master, overrides), loader
        )

    def compose(self, overrides: Sequence[str], index: int) -> DictConfig:
        """Compose the configuration of one job.

        Raises:
            hydra.errors.HydraException: the overrides do not compose.
        """
        config = self._compositions.config(overrides)
        config.hydra.job.id, config.hydra.job.num = str(index), index
        if config.run.get("sweep") is None:
            OmegaConf.update(config, "run.sweep", self.sweep, force_add=True)
        if (run := name_run(config, self._runs)) is not None and (changes := news(config, run)):
            self.continued[config.run.id] = changes
        return config

    def check_values(self, overrides: Sequence[str]) -> None:
        """Raise a ConfigError for each value that does not apply to the groups of a job."""
        parsed = map(parse, overrides)
        groups = [str(each.input_line) for each in parsed if not self._compositions.is_value(each)]
        apply_to_groups(overrides, self._compositions.groups(groups))


def sweep_name(master: DictConfig) -> str:
    """Return a name for a sweep, the same when the command is repeated."""
    overrides_used = sorted(
        word
        for word in master.hydra.overrides.task
        if not str(word).lstrip("+~").startswith(NOT_IN_NAME)
    )
    return f"sweep-{hashlib.sha256(chr(10).join(overrides_used).encode()).hexdigest()[:8]}"
