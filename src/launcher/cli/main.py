"""The command line: Hydra's, with every error of a configuration as a sentence and exit code 2."""

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from launcher.config import schema
from launcher.config.explain import explain, report
from launcher.config.options import config_path
from launcher.config.session import VERSION_BASE, flag_parser
from launcher.errors import ConfigError, TrainingError

BAD_COMMAND = 2
QUOTED_KEYS = ("run.id=", "run.name=", "run.tag=", "run.init_from=")

_task_started = False


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; leaves by SystemExit for every outcome but a completed run and a crash."""
    global _task_started
    _task_started = False
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints exceptions itself and exits 1
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = Namespace(overrides=[], config_dir=None, config_name=None, multirun=False)
    try:
        arguments = read(given)
        sys.argv[1:] = _in_order(given, arguments)
        hydra.main(config_path(), "config", VERSION_BASE)(task)()
    except TrainingError:
        raise SystemExit(1) from None  # the job has said so, in a sentence that needs no traceback
    except Exception as error:
        sentences = explain(error, None if _task_started else arguments)
        if not sentences:
            raise
        report(sentences)
        raise SystemExit(BAD_COMMAND) from None


def read(argv: Sequence[str]) -> Namespace:
    """Hydra's flags, wherever they stand among the overrides.

    Raises:
        ConfigError: an unknown flag, or flags that exclude each other.
    """
    if "--version" in argv:
        from importlib.metadata import version

        print(f"torch-launcher {version('torch-launcher')}")
        raise SystemExit(0)
    parser = flag_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    arguments = parser.parse_intermixed_args(argv)
    commands = [name for name in ("run", "multirun", "cfg", "info", "shell_completion") if getattr(arguments, name)]
    if len(commands) > 1:
        _refuse(f"--{' and --'.join(commands)} exclude each other")
    if arguments.resolve and not (arguments.cfg or arguments.help):
        _refuse("--resolve needs --cfg job")
    return arguments


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; see --help.")


def _in_order(argv: Sequence[str], arguments: Namespace) -> list[str]:
    """Overrides first, then flags: Hydra's parser takes no `a=1 -m b=2`. Names that look like numbers get
    quotes, since an id of hex digits (12345e67) would be read as one."""
    flags = list(argv)
    for override in arguments.overrides:
        flags.remove(override)
    arguments.overrides = [_quoted(override) for override in arguments.overrides]
    return [*arguments.overrides, *flags]


def _quoted(override: str) -> str:
    key, _, value = override.partition("=")
    if f"{key}=" in QUOTED_KEYS and value[:1].isdigit() and value.replace("_", "").isalnum():
        return f"{key}='{value}'"
    return override


def task(config: DictConfig) -> Any:
    """What Hydra runs for each job; importable, so that any of its launchers can send it elsewhere."""
    global _task_started
    _task_started = True
    from launcher.dispatch.task import task as dispatch

    try:
        return dispatch(config)
    except Exception as error:
        sentences = explain(error)
        if not sentences:
            raise
        report(sentences)
        _remove_empty(Path(config.run.dir))
        raise SystemExit(BAD_COMMAND) from None


def _remove_empty(folder: Path) -> None:
    """Take back the folders that Hydra made for a run which never began."""
    for empty in (folder, folder.parent, folder.parent.parent):
        try:
            empty.rmdir()
        except OSError:
            return


class Validation(Callback):
    """Hydra's callback that checks the configuration of a run before Hydra makes the run's folder."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            schema.validate(config)
        except ConfigError as error:
            report(error.sentences)
            raise SystemExit(BAD_COMMAND) from None
        except Exception as error:  # Hydra would make a warning of it, and go on
            traceback.print_exc()
            raise SystemExit(1) from error
