"""The command line. Every configuration error is a message, with exit code 2."""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from launcher.cli.flags import read, with_own_folder
from launcher.config.compose.composer import Command, command
from launcher.config.compose.hydra_job import Callbacks
from launcher.config.explain import explain, report, user_traceback
from launcher.dispatch.environment import join_ranks
from launcher.dispatch.jobs import Job
from launcher.errors import REJECTED, TrainingError
from launcher.process import collector
from launcher.process.process_id import RANK
from launcher.rundir.logs import ending_with_reader


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exits by SystemExit unless the run completes."""
    try:
        with ending_with_reader():
            execute(read(with_own_folder(sys.argv[1:] if argv is None else argv)))
    except Exception as error:
        raise SystemExit(_report_error(error)) from None


def execute(arguments: Namespace) -> None:
    """Do what a command line requests."""
    if arguments.for_hydra and not arguments.info:
        from launcher.cli.hydra_main import enter

        return enter(arguments.overrides, arguments)
    mode = RunMode.MULTIRUN if arguments.multirun else None
    if arguments.run or arguments.cfg or arguments.info:
        mode = RunMode.RUN
    jobs: list[Job] | None = []
    with command(arguments.overrides, arguments.config_dir, arguments.config_name, mode) as words:
        if arguments.cfg:
            from launcher.cli.show_config import print_config

            return print_config(words, arguments)
        if arguments.info:
            words.config()
        elif not words.is_sweep:
            return _start(words)
        else:
            from launcher.cli.sweep import sweep

            # Thousands of jobs may be composed.
            collector.resume()
            if (jobs := sweep(words)) is None:
                return None
        explicit = words.explicit()
        folder = submitit_folder(words.master) if jobs else None
        launcher = str(words.choice("hydra/launcher"))
    from launcher.cli.hydra_main import enter

    if not jobs or folder is None:
        return enter(explicit, arguments)
    from launcher.cli.submitit_sweep import run_sweep

    run_sweep(jobs, folder, launcher, lambda: enter(explicit, arguments))


def submitit_folder(master: DictConfig | None) -> str | None:
    """Return the pattern of submitit's folders, if the launcher is one of submitit."""
    key = "hydra.launcher.submitit_folder"
    pattern = None if master is None else OmegaConf.select(master, key)
    return None if pattern is None else str(pattern)


def _start(words: Command) -> None:
    from launcher.dispatch.start import start_run

    words.report_unused()
    config = words.config()
    run = words.check(config)
    line = run.continuation
    if line is not None and not _is_later_rank():
        print(line, file=sys.stderr, flush=True)
    callbacks = Callbacks(config)
    with callbacks.notify("run", run, config_name=words.composer.config_name) as result:
        result.return_value = start_run(run)


def _is_later_rank() -> bool:
    return join_ranks() and os.environ[RANK] != "0"


def _report_error(error: BaseException) -> int:
    """Print an error as messages, or as a traceback; return the exit code."""
    # The job has reported it, and it needs no traceback.
    if isinstance(error, TrainingError):
        return 1
    messages = explain(error)
    report(messages or [user_traceback(error).rstrip()])
    return REJECTED if messages else 1
