"""Hydra plugins for sweeps (`-m`): `hydra/sweeper=grid` and `hydra/launcher=dispatch`.

Hydra imports this in every application of the environment, so the work is in `launcher.cli.sweep`, imported on
use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from launcher.cli.sweep import SweepJob


@dataclass
class DispatchLauncherConf:
    _target_: str = "hydra_plugins.launcher_dispatch.DispatchLauncher"


@dataclass
class GridSweeperConf(BasicSweeperConf):
    _target_: str = "hydra_plugins.launcher_dispatch.GridSweeper"


class DispatchLauncher(Launcher):
    """Hands the jobs of a sweep to the dispatch that the configuration names."""

    def __init__(self) -> None:
        self.config: DictConfig | None = None
        self.context: HydraContext | None = None
        self.task: TaskFunction | None = None
        self.checked: dict[tuple[str, ...], SweepJob] = {}
        """Jobs that the sweeper has checked already, by their overrides."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.context, self.task = config, hydra_context, task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from launcher.cli.sweep import check_jobs, run_jobs

        assert self.config is not None and self.context is not None and self.task is not None
        setup_globals()
        if all(tuple(overrides) in self.checked for overrides in job_overrides):
            jobs = [self.checked[tuple(overrides)] for overrides in job_overrides]
        else:  # a sweeper that asks for one batch after the other
            jobs = check_jobs(self.context.config_loader, self.config, job_overrides, initial_job_idx)
        return run_jobs(jobs, self.task, self.context)


class GridSweeper(BasicSweeper):
    """Every combination of the values, like Hydra's basic sweeper; but all of them are checked before the
    first starts or anything is written, and a job that fails stops no other."""

    def sweep(self, arguments: list[str]) -> Any:
        from launcher.cli.sweep import check_jobs, conclude
        from launcher.config.grid import expand

        assert self.config is not None and self.launcher is not None and self.hydra_context is not None
        loader = self.hydra_context.config_loader
        parser = OverridesParser.create(config_loader=loader)
        overrides = expand(parser.parse_overrides(self._parse_config() + arguments))
        jobs = check_jobs(loader, self.config, overrides)
        if isinstance(self.launcher, DispatchLauncher):
            self.launcher.checked = {tuple(job.overrides): job for job in jobs}
        results: list[JobReturn] = []
        for batch in self.split_overrides_to_chunks(overrides, self.max_batch_size):
            results += self.launcher.launch(batch, initial_job_idx=len(results))
        conclude(jobs, results)
        return [results]


store = ConfigStore.instance()
store.store(group="hydra/launcher", name="dispatch", node=DispatchLauncherConf, provider="launcher")
store.store(group="hydra/sweeper", name="grid", node=GridSweeperConf, provider="launcher")
