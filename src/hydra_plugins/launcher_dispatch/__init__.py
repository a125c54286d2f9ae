"""Hydra plugins for sweeps (`-m`).

They are `hydra/sweeper=grid` and `=optuna`, and `hydra/launcher=dispatch`.

Every Hydra application of the environment imports this, so `launcher.cli.sweep` is imported on use.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from launcher.cli.sweep_job import SweepJob


@dataclass
class DispatchLauncherConf:
    _target_: str = "hydra_plugins.launcher_dispatch.DispatchLauncher"


@dataclass
class GridSweeperConf:
    _target_: str = "hydra_plugins.launcher_dispatch.GridSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = field(default_factory=dict)


@dataclass
class OptunaSweeperConf:
    _target_: str = "hydra_plugins.launcher_dispatch.OptunaSweeper"


class InstalledOptions(SearchPathPlugin):
    """Adds the options of installed packages.

    They are for Launcher alone, and not for other Hydra applications.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from launcher.config.options import ENTRY_POINTS, config_path, installed
        from launcher.errors import ConfigError

        main = [
            element.path or "" for element in search_path.get_path() if element.provider == "main"
        ]
        if main and main[0].removeprefix("file://") == config_path():
            for name, folder in installed().items():
                if folder is None:
                    raise ConfigError(
                        f"{ENTRY_POINTS}={name}: an installed package names this folder of options,"
                        " which does not exist; reinstall that package."
                    )
                search_path.append(name, f"file://{folder}")


class DispatchLauncher(Launcher):
    """Passes the jobs of a sweep to the dispatch of the configuration."""

    def __init__(self) -> None:
        self.config: DictConfig | None = None
        self.context: HydraContext | None = None
        self.task: TaskFunction | None = None
        self.checked: dict[tuple[str, ...], SweepJob] = {}
        """Jobs that the sweeper has checked, by their overrides."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config, self.context, self.task = config, hydra_context, task_function

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from launcher.cli.sweep import check_jobs, run_jobs

        assert self.config is not None and self.context is not None and self.task is not None
        setup_globals()
        if all(tuple(overrides) in self.checked for overrides in job_overrides):
            jobs = [self.checked[tuple(overrides)] for overrides in job_overrides]
        # This is a sweeper that launches batch after batch.
        else:
            jobs = check_jobs(
                self.context.config_loader, self.config, job_overrides, initial_job_idx
            )
        return run_jobs(jobs, self.task, self.context)


class GridSweeper(Sweeper):
    """Runs every combination of the values, like Hydra's basic sweeper.

    It checks all of them before the first starts or anything is written. A job that fails does not
    stop the others.

    Args:
        max_batch_size: hand at most this many jobs to the launcher at a time. Default None: all.
        params: values to sweep over, besides the command line's.
    """

    def __init__(self, max_batch_size: int | None = None, params: dict[str, str] | None = None):
        self.max_batch_size, self.params = max_batch_size, dict(params or {})
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None
        self.loader: Any = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config, self.loader = config, hydra_context.config_loader
        self.launcher = Plugins.instance().instantiate_launcher(
            config=config, hydra_context=hydra_context, task_function=task_function
        )

    def sweep(self, arguments: list[str]) -> object:
        from launcher.cli.sweep import check_jobs, conclude
        from launcher.config.grid import expand

        assert self.config is not None and self.launcher is not None
        parser = OverridesParser.create(config_loader=self.loader)
        params = [f"{key}={value}" for key, value in self.params.items()]
        overrides = expand(parser.parse_overrides([*params, *arguments]))
        jobs = check_jobs(self.loader, self.config, overrides)
        if isinstance(self.launcher, DispatchLauncher):
            self.launcher.checked = {tuple(job.overrides): job for job in jobs}
        results: list[JobReturn] = []
        size = self.max_batch_size or max(1, len(overrides))
        for start in range(0, len(overrides), size):
            results += self.launcher.launch(overrides[start : start + size], initial_job_idx=start)
        conclude(jobs, results)
        return [results]


class OptunaSweeper(Sweeper):
    """Searches for the best values of keys. Its settings are `hpo.*`; see `launcher.search`."""

    def __init__(self) -> None:
        self.config: DictConfig | None = None
        self.loader: Any = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config, self.loader = config, hydra_context.config_loader

    def sweep(self, arguments: list[str]) -> None:
        from launcher.errors import ConfigError

        assert self.config is not None
        try:
            import optuna  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "hydra/sweeper=optuna: needs Optuna; pip install 'torch-launcher[optuna]'."
            ) from error
        from launcher.search.entry import sweep

        setup_globals()
        sweep(self.loader, self.config, arguments)


store = ConfigStore.instance()
store.store(group="hydra/launcher", name="dispatch", node=DispatchLauncherConf, provider="launcher")
store.store(group="hydra/sweeper", name="grid", node=GridSweeperConf, provider="launcher")
store.store(group="hydra/sweeper", name="optuna", node=OptunaSweeperConf, provider="launcher")
