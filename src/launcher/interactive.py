"""Runs from Python and notebooks: `launcher.compose`, `launcher.sweep`.

They are the runs of the command line, so the same configuration has the same id, folder, lock and
checkpoints. A run trains in the calling process, whose signal handlers, log handlers and Hydra are
restored once it has ended.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from launcher.cli.sweep import check_jobs, run_jobs
from launcher.cli.sweep_queue import reason
from launcher.config.compose.composer import Command, command
from launcher.config.compose.grid import GRID
from launcher.config.compose.hydra_job import as_hydra_job
from launcher.config.construct import construct
from launcher.config.explain import explain
from launcher.config.options import own_folder
from launcher.config.run_config import RunConfig
from launcher.config.schema.source import forget_changed_sources
from launcher.dispatch.jobs import Job
from launcher.dispatch.run_job import dispatch_run
from launcher.errors import ConfigError, TrainingError
from launcher.process import deadline, signals
from launcher.process.plural import plural
from launcher.rundir.logs import without_launcher_logging
from launcher.runs.stored_run import StoredRun

if TYPE_CHECKING:
    from torch import nn

SLURM = "dispatch=slurm"
_busy: dict[int, object] = {}
"""A mark of the command that trains, by process: a forked child may train too."""


class Run:
    """A run, as its configuration names it. Nothing is written before it trains.

    Examples:
        >>> run = launcher.compose("model=mlp", "data=digits", "trainer.max_steps=2", "device=cpu")
        >>> run.state, run.step
        ('new', 0)
        >>> run.name
        'mlp-digits'
    """

    def __init__(self, overrides: Sequence[str], config_dir: str | Path | None, config: RunConfig):
        self._overrides = list(overrides)
        self._config_dir = config_dir
        self._config = config
        self.config = config.plain
        """The configuration, checked and resolved, as dicts and lists."""

    def __repr__(self) -> str:
        return f"<Run {self.name}/{self.id}: {self.state}, step {self.step}>"

    @property
    def id(self) -> str:
        """`run.id`, the name of its folder."""
        return self._config.run.id

    @property
    def name(self) -> str:
        """The value of `run.name`."""
        return self._config.run.name

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self._config.folder.path

    @property
    def state(self) -> str:
        """`new` before it has started, else as `python -m launcher.runs` lists it."""
        return self._stored.state if self._stored.record else "new"

    @property
    def step(self) -> int:
        """The newest step that its record has."""
        return self._stored.step

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric; empty before the run has logged any."""
        return {name: newest.value for name, newest in self._stored.metrics.items()}

    @property
    def _stored(self) -> StoredRun:
        return StoredRun.read(self.folder)

    def train(self) -> dict[str, float]:
        """Train in this process until the run is complete; a complete run returns at once.

        Interrupting the cell saves, as Ctrl-C does, and the same call resumes.

        Returns:
            The newest value of each metric.
        Raises:
            ConfigError: the run was rejected, and nothing was written.
            TrainingError: training failed for a reason that needs no traceback.
            KeyboardInterrupt: it was interrupted, and the state is durable.
        """
        if not self._config.trains:
            raise ConfigError(f"{self._option('job')}: train() needs job=train; leave it out.")
        self._check_local()
        if (line := self._config.continuation) is not None:
            print(line, file=sys.stderr, flush=True)
        _start(self._config)
        return self.metrics

    def submit(self) -> str | None:
        """Submit the run to SLURM, with `dispatch=slurm` if its own dispatch does not submit.

        Returns:
            The id of the run's newest job. It is an older job if there was nothing to submit, and
            None if the run has never had one.
        Raises:
            ConfigError: it cannot be submitted.
        """
        if not self._submits:
            return compose(*self._overrides, SLURM, config_dir=self._config_dir).submit()
        _start(self._config)
        return self._stored.job_id

    def load_model(self, checkpoint: str = "latest", weights: str | None = None) -> "nn.Module":
        """The model with the weights of a checkpoint; see `launcher.load_model`."""
        from launcher.resume.trained_model import load_model

        return load_model(self.folder, checkpoint, weights)

    @property
    def _submits(self) -> bool:
        return hasattr(construct(self.config["dispatch"]), "sweep")

    def _check_local(self) -> None:
        if self._submits:
            option = self._option("dispatch")
            raise ConfigError(f"{option}: train() trains here; use submit(), or leave it out.")

    def _option(self, group: str) -> str:
        return f"{group}={self._config.choices[group]}"


class Sweep(list[Run]):
    """The runs of a sweep, in the order of its jobs. `launcher.sweep` makes one.

    Examples:
        >>> sweep = launcher.sweep(["model=mlp", "data=digits", "seed=1,2"])
        >>> [run.config["seed"] for run in sweep]
        [1, 2]
    """

    def __init__(self, runs: Sequence[Run], jobs: Sequence[Job]):
        super().__init__(runs)
        self._jobs = list(jobs)

    def __repr__(self) -> str:
        return "\n".join(["<Sweep", *(f"  {run!r}" for run in self), ">"])

    def train(self) -> "Sweep":
        """Train the runs in processes, one after the other, or `dispatch.parallel` at a time.

        A run that fails does not stop the others.

        Raises:
            TrainingError: some failed, and the others are complete.
            KeyboardInterrupt: it was interrupted. The running ones have saved, and the same call
                resumes them.
        """
        self[0]._check_local()
        with _as_command():
            try:
                results = run_jobs(self._jobs)
            except signals.SignalExit:
                raise
            except SystemExit as stop:
                raise TrainingError(f"a run ended with exit code {stop.code}.") from None
        pairs = zip(self._jobs, results, strict=True)
        failed = [(job, result) for job, result in pairs if result.error is not None]
        if failed:
            job, result = failed[0]
            raise TrainingError(
                f"{len(failed)} of {plural(len(self), 'run')} failed; {job.run}:"
                f" {reason(job, result)}"
            ) from result.error
        return self

    def submit(self) -> list[str | None]:
        """Submit the runs to SLURM as an array; `dispatch=slurm` must be among the overrides.

        Returns:
            The id of each run's newest job, as `Run.submit`.
        """
        if not self[0]._submits:
            raise ConfigError(f"{self[0]._option('dispatch')}: submit() needs {SLURM}.")
        with _as_command():
            run_jobs(self._jobs)
        return [run._stored.job_id for run in self]


def compose(*overrides: str, config_dir: str | Path | None = None) -> Run:
    """Name a run by the overrides of a command line.

    `compose("model=mlp", "optimizer.lr=1e-3")` is the run of `python -m launcher model=mlp
    optimizer.lr=1e-3`.

    Args:
        *overrides: the arguments of the command line.
        config_dir: a folder of options, as `--config-dir`. Default None: `conf/` in the current
            folder, if it has options.
    Raises:
        ConfigError: with a message for each mistake.
    """
    with _session(overrides, config_dir) as words:
        return Run(overrides, config_dir, words.run())


def sweep(overrides: Sequence[str], config_dir: str | Path | None = None) -> Sweep:
    """Name the runs of a sweep.

    `sweep(["model=mlp", "seed=1,2,3"])` has the runs of `python -m launcher -m model=mlp
    seed=1,2,3`. All are checked.

    Raises:
        ConfigError: with a message for each mistake in any of them.
    """
    with _session(overrides, config_dir, RunMode.MULTIRUN) as words:
        sweeper = words.choice("hydra/sweeper")
        if sweeper == GRID:
            words.report_unused()
        jobs = check_jobs(words, words.expand())
        if sweeper != GRID:
            raise ConfigError(f"hydra/sweeper={sweeper}: a search runs on the command line.")
    return Sweep([Run(job.overrides, config_dir, job.config) for job in jobs], jobs)


@contextmanager
def _session(
    overrides: Sequence[str], config_dir: str | Path | None, mode: RunMode = RunMode.RUN
) -> Iterator[Command]:
    """Read overrides as `command` does, and restore Hydra's configuration afterwards."""
    before = HydraConfig.instance().cfg
    if isinstance(overrides, str):
        raise ConfigError(f"{overrides!r}: should be a list of overrides, e.g. ['model=mlp'].")
    if wrong := [word for word in overrides if not isinstance(word, str)]:
        raise ConfigError(f"{wrong[0]!r}: should be an override; e.g. compose(*['model=mlp']).")
    folder = own_folder() if config_dir is None else config_dir
    try:
        with command(overrides, folder, mode=mode) as words:
            yield words
    finally:
        HydraConfig.instance().cfg = before


def _start(config: RunConfig) -> None:
    try:
        with _as_command():
            as_hydra_job(config, dispatch_run)
    except signals.SignalExit:
        raise
    # A rank failed, and its error is printed.
    except SystemExit as stop:
        reason = StoredRun.read(config.folder.path).failure
        raise TrainingError(reason or f"exit code {stop.code}") from None
    except Exception as error:
        if messages := explain(error):
            raise ConfigError(*messages) from error
        raise


@contextmanager
def _as_command() -> Iterator[None]:
    """Act as the process of a command within the context.

    Signals stop the run, SIGINT as KeyboardInterrupt. Afterwards the previous handlers are
    restored.

    Raises:
        ConfigError: this process trains already, in another thread or further up the stack. Both
            would draw from the same generators.
    """
    mark = object()
    if _busy.setdefault(os.getpid(), mark) is not mark:
        raise ConfigError(
            "train(): this process trains another run; wait until it has ended, or train both as"
            " jobs of a launcher.sweep."
        )
    try:
        with _command_of_its_own():
            yield
    finally:
        del _busy[os.getpid()]


@contextmanager
def _command_of_its_own() -> Iterator[None]:
    forget_changed_sources()
    is_interruptible = threading.current_thread() is threading.main_thread()
    if is_interruptible:
        signals.forget()
        before = signals.install()
        wakeup = signal.set_wakeup_fd(-1)
    else:
        logging.getLogger("launcher").warning("not in the main thread: an interrupt does not save.")
    try:
        with without_launcher_logging():
            yield
            # A signal may have come too late to stop anything.
            signals.check()
    except signals.SignalExit as stop:
        if stop.signum == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise
    finally:
        if is_interruptible:
            deadline.disarm()
            signal.set_wakeup_fd(wakeup)
            signals.restore(before)
            signals.forget()
