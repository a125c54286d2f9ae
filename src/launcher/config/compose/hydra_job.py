"""Hydra's state within a job: its configuration, its variables, and the user's callbacks."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from launcher.config.compose.resolve import hydra_config, resolve_part
from launcher.config.construct import instantiate
from launcher.config.run_config import RunConfig

Task = Callable[[RunConfig], object]


class Callbacks:
    """The callbacks of `hydra.callbacks`.

    Args:
        config: the composed configuration, with Hydra's node.
    """

    def __init__(self, config: DictConfig):
        nodes = resolve_part(config, "hydra.callbacks") or {}
        self._config = config
        self._callbacks = [
            instantiate(node, f"hydra.callbacks.{name}") for name, node in nodes.items()
        ]

    def call(self, event: str, **details: object) -> None:
        """Call the method of an event; an exception in it is a warning, as in Hydra."""
        ends = event.endswith("_end")
        for callback in reversed(self._callbacks) if ends else self._callbacks:
            try:
                getattr(callback, event)(config=self._config, **details)
            except Exception as error:
                name = f"{type(callback).__name__}.{event}"
                warnings.warn(
                    f"Callback {name} raised {type(error).__name__}: {error}", stacklevel=2
                )

    @contextmanager
    def notify(self, what: str, run: RunConfig, **details: object) -> Iterator[JobReturn]:
        """Call `on_<what>_start` and `on_<what>_end` around the context, which sets the value."""
        self.call(f"on_{what}_start", **details)
        details.pop("task_function", None)
        result = JobReturn(overrides=run.overrides, cfg=self._config, working_dir=os.getcwd())
        result.status = JobStatus.COMPLETED
        try:
            yield result
        except Exception as error:
            result.return_value = error
            result.status = JobStatus.FAILED
            self.call(f"on_{what}_end", job_return=result, **details)
            raise
        self.call(f"on_{what}_end", job_return=result, **details)


def to_hydra_config(run: RunConfig) -> DictConfig:
    """Return a run's configuration as Hydra has composed it."""
    config: Any = OmegaConf.create({**run.stored, "hydra": run.hydra})
    if config.hydra.mode is not None:
        config.hydra.mode = RunMode[config.hydra.mode]
    return config  # type: ignore[no-any-return]


@contextmanager
def hydra_job(run: RunConfig) -> Iterator[None]:
    """Within the context, `HydraConfig` and the variables of `hydra.job.env_set` are the run's."""
    config = None if run.hydra is None else to_hydra_config(run)
    variables = _variables(config)
    saved = {name: os.environ.get(name) for name in variables}
    with hydra_config(config):
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in saved:
                os.environ.pop(name, None)
            os.environ.update({name: value for name, value in saved.items() if value is not None})


def _variables(config: DictConfig | None) -> dict[str, str]:
    variables = {} if config is None else resolve_part(config, "hydra.job.env_set") or {}
    return {str(name): str(value) for name, value in variables.items()}


def as_hydra_job(run: RunConfig, task: Task) -> object:
    """Run a task as a job of Hydra, with its callbacks; return the value of the task."""
    with hydra_job(run):
        if not (run.hydra or {}).get("callbacks"):
            return task(run)
        with Callbacks(to_hydra_config(run)).notify("job", run, task_function=task) as result:
            value = task(run)
            result.return_value = value
        return value
