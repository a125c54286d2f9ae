"""Hydra's plugins: the options `hydra/sweeper=optuna` and `hydra/launcher=dispatch`.

Launcher runs its own sweeps without them. They connect its jobs to the sweepers and launchers of
other packages.

Every Hydra application of the environment imports this, so `launcher.cli.sweep` is imported on use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from launcher.config.compose.composer import Command


@dataclass
class DispatchLauncherConf:
    _target_: str = "hydra_plugins.launcher_dispatch.DispatchLauncher"


@dataclass
class OptunaSweeperConf:
    _target_: str = "hydra_plugins.launcher_dispatch.OptunaSweeper"


class InstalledOptions(SearchPathPlugin):
    """Adds the options of installed packages.

    They are for Launcher alone, and not for other Hydra applications.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from launcher.config.options import ENTRY_POINTS, config_path, find_installed
        from launcher.errors import ConfigError

        main = [
            element.path or "" for element in search_path.get_path() if element.provider == "main"
        ]
        if main and main[0].removeprefix("file://") == config_path():
            for name, folder in find_installed().items():
                if folder is None:
                    raise ConfigError(
                        f"{ENTRY_POINTS}={name}: an installed package names this folder of options,"
                        " which does not exist; reinstall that package."
                    )
                search_path.append(name, f"file://{folder}")


class DispatchLauncher(Launcher):
    """Passes the jobs of another package's sweeper to the dispatch of the configuration."""

    def __init__(self) -> None:
        self.words: Command | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.words = command_of(config)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from launcher.cli.sweep import check_jobs, run_jobs

        assert self.words is not None
        jobs = check_jobs(self.words, job_overrides, initial_job_idx)
        returns = []
        for job, result in zip(jobs, run_jobs(jobs), strict=True):
            returned = JobReturn(overrides=job.overrides)
            is_failed = result.error is not None
            returned.status = JobStatus.FAILED if is_failed else JobStatus.COMPLETED
            returned.return_value = result.error if is_failed else result.value
            returns.append(returned)
        return returns


class OptunaSweeper:
    """Searches for the best values of keys. Its settings are `hpo.*`; see `launcher.search`."""

    @staticmethod
    def search(words: "Command", master: DictConfig) -> None:
        """Search in place of a sweep; Launcher calls it."""
        from launcher.errors import ConfigError

        try:
            import optuna  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "hydra/sweeper=optuna: needs Optuna; pip install 'torch-launcher[optuna]'."
            ) from error
        from launcher.search.entry import sweep

        sweep(words, master)


def command_of(config: DictConfig) -> "Command":
    """Return the command that Hydra has composed, in Hydra's session."""
    from launcher.config.compose.composer import Command

    overrides = config.hydra.overrides
    return Command([*overrides.hydra, *overrides.task], config.hydra.job.config_name)


store = ConfigStore.instance()
# The defaults of a project, which `launcher.config.compose.project` may have set already.
if "_project_.yaml" not in store.repo:
    store.store("_project_", {}, provider="launcher")
store.store(group="hydra/launcher", name="dispatch", node=DispatchLauncherConf, provider="launcher")
store.store(group="hydra/sweeper", name="optuna", node=OptunaSweeperConf, provider="launcher")
