"""Hydra's command line. Every configuration error is a message, with exit code 2."""

import os
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from launcher.cli.flags import read, with_own_folder
from launcher.config import schema
from launcher.config.compose import compose, explicit
from launcher.config.compositions import values
from launcher.config.construct import decided_here
from launcher.config.diagnose import apply_to_groups
from launcher.config.explain import explain, log_traceback, report, user_traceback
from launcher.config.identity import fix_name, register_hydra
from launcher.config.lookup import Runs, continues, name_run
from launcher.config.options import TRAIN_JOB, config_path
from launcher.config.secrets import without_environment
from launcher.config.session import (
    COMPOSITION_ERRORS,
    VERSION,
    first_line,
    loader,
    returned,
    run_application,
    session,
)
from launcher.dispatch.environment import join_ranks
from launcher.errors import ConfigError, TrainingError
from launcher.process import collector
from launcher.rundir.files import expanded, remove_empty
from launcher.rundir.folder import RunFolder
from launcher.rundir.logs import ending_with_reader

BAD_COMMAND = 2

_task_started = False
_existing_folders: frozenset[Path] = frozenset()
_values_of: Sequence[str] = ()
"""The overrides of a command line whose values `Validation` applies, after Hydra has composed the
groups. An error in them is then explained without another composition."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exits by SystemExit unless the run completes."""
    with ending_with_reader():
        _main(sys.argv[1:] if argv is None else argv)


def _main(argv: Sequence[str]) -> None:
    global _task_started
    _task_started = False
    # Otherwise Hydra prints exceptions itself and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # A folder of hydra.searchpath that does not exist is an error, see `schema.check_hydra`.
    warnings.filterwarnings("ignore", r"provider=.*\n?.*is not available", UserWarning)
    arguments = None
    try:
        arguments = read(with_own_folder(argv))
        try:
            _execute(arguments)
        except COMPOSITION_ERRORS as error:
            if _task_started:
                raise
            if messages := explain(error, arguments):
                raise ConfigError(*messages) from error
            # The only problem is that Hydra needs a `+` for keys that the YAML files leave out.
            overrides = explicit(arguments.overrides, arguments.config_dir, arguments.config_name)
            if overrides == arguments.overrides:
                raise ConfigError(first_line(error)) from error
            arguments.overrides = overrides
            _execute(arguments)
        if arguments.cfg:
            sys.stdout.flush()
            schema.validate(
                compose(arguments.overrides, arguments.config_dir, arguments.config_name)
            )
    except JobFailed as failed:
        raise SystemExit(_reported(failed.error, None)) from None
    except BrokenPipeError:
        raise
    except Exception as error:
        raise SystemExit(_reported(error, None if _task_started else arguments)) from None


def _execute(arguments: Namespace) -> None:
    global _values_of
    if arguments.for_hydra is not None:
        # Overrides come first, since Hydra's parser does not accept `a=1 -m b=2`.
        sys.argv[1:] = [*arguments.overrides, *arguments.for_hydra]
        with decided_here():
            hydra.main(config_path=config_path(), config_name="config", **VERSION)(task)()
        return
    if arguments.config_dir is not None and not Path(arguments.config_dir).is_dir():
        raise ConfigError(f"--config-dir={arguments.config_dir}: there is no such folder.")
    with decided_here(), session(arguments.config_dir):
        _values_of = () if _may_add_groups(arguments) else arguments.overrides
        run_application(task, arguments, values(_values_of, loader()))


def _may_add_groups(arguments: Namespace) -> bool:
    """Return whether `hydra.searchpath` may add groups, which look like values without it."""
    own = Path(arguments.config_dir or "", f"{arguments.config_name}.yaml")
    return (
        arguments.config_name != "config"
        or (arguments.config_dir is not None and own.exists())
        or any(text.startswith("hydra.searchpath=") for text in arguments.overrides)
    )


def _reported(error: BaseException, arguments: Namespace | None) -> int:
    """Print an error as messages, or as a traceback; return the exit code."""
    if isinstance(error, TrainingError):
        # The job has reported it, and it needs no traceback.
        return 1
    if (
        isinstance(error, OSError)
        and error.filename
        and not (_task_started or os.path.lexists(error.filename))
    ):
        report(
            [
                f"paths.outputs: {error.filename} cannot be created ({error.strerror}); use another"
                " folder."
            ]
        )
        return BAD_COMMAND
    messages = explain(error, arguments)
    report(messages or [user_traceback(error).rstrip()])
    return BAD_COMMAND if messages else 1


def task(config: DictConfig) -> object:
    """Run a job for Hydra; it is importable, so that Hydra's launchers can send it elsewhere."""
    note_start()
    from launcher.dispatch.task import task as dispatch

    folder = RunFolder(config.run.dir)
    try:
        with ending_with_reader():
            result = dispatch(config)
    except Exception as error:
        messages = without_environment(explain(error), str(config))
        if not messages:
            log_traceback(error, folder)
            raise
        report(messages)
        _remove_made(folder.path)
        rejected = SystemExit(BAD_COMMAND)
        # The note is for the table of a sweep.
        rejected.add_note(messages[0])
        raise rejected from None
    if config.dispatch.get("dry_run"):
        _remove_made(folder.path)
    return result if config.job._target_ != TRAIN_JOB else _returned(config, result)


def note_start() -> None:
    """Record that the job has started: later errors are not errors of the command line."""
    global _task_started
    _task_started = True


def _returned(config: DictConfig, metrics: dict[str, Any] | None) -> object:
    """The objective's value for a sweeper that needs it, else all metrics."""
    from launcher.runs.objective import job_value, objective_of

    sweeper = HydraConfig.get().runtime.choices["hydra/sweeper"] if _is_sweep() else None
    plain: dict[str, object] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    if (objective := objective_of(plain, sweeper)) is not None:
        return job_value(plain, objective)
    return _metrics(RunFolder(config.run.dir)) if metrics is None else metrics


def _is_sweep() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def _metrics(folder: RunFolder) -> dict[str, object]:
    """Return the newest metrics of a complete run, as its first sweep did."""
    from launcher.rundir.metrics import newest_metrics

    return {name: newest.value for name, newest in newest_metrics(folder.metrics_path).items()}


def _remove_made(folder: Path) -> None:
    """Remove the empty folders that Hydra made for a run that did not start."""
    if _existing_folders:
        made = takewhile(lambda each: each not in _existing_folders, (folder, *folder.parents))
        remove_empty(*made)


class JobFailed(BaseException):
    """Carries a job's error through Hydra, which catches every Exception."""

    def __init__(self, error: BaseException):
        self.error = error


class Validation(Callback):
    """Checks the configuration before Hydra makes a folder."""

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        register_hydra()
        if _values_of:
            _check(partial(apply_to_groups, _values_of), config)
        fix_name(config)
        _check(schema.validate, config)
        _check(_find_run, config)
        _note_existing(Path(config.run.dir))

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Exit after the last callback, before Hydra prints and raises its own error."""
        job_return: JobReturn = kwargs["job_return"]
        if job_return.status == JobStatus.FAILED and isinstance(
            error := returned(job_return), Exception
        ):
            raise JobFailed(error)

    def on_multirun_start(self, config: DictConfig, **kwargs: object) -> None:
        # This happens before thousands of runs are composed.
        collector.resume()
        _check(schema.check_hydra, config)
        _note_existing(expanded(config.paths.outputs))


def _find_run(config: DictConfig) -> None:
    """Find the run that the configuration names, and print if it is an equivalent one."""
    run = name_run(config, Runs())
    if run is not None and not _is_later_rank():
        print(continues(config, run), file=sys.stderr, flush=True)


def _is_later_rank() -> bool:
    return join_ranks() and os.environ["RANK"] != "0"


def _note_existing(folder: Path) -> None:
    global _existing_folders
    _existing_folders = frozenset(path for path in (folder, *folder.parents) if path.exists())


def _check(check: Callable[[DictConfig], object], config: DictConfig) -> None:
    try:
        check(config)
    except ConfigError as error:
        report(error.messages)
        raise SystemExit(BAD_COMMAND) from None
    # Hydra would print a warning, and continue.
    except Exception as error:
        traceback.print_exc()
        raise SystemExit(1) from error
