"""One task of a submitted job, which srun has started."""

import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

from launcher.config.compose.hydra_job import hydra_job
from launcher.config.explain import explain, report
from launcher.config.run_config import from_stored
from launcher.dispatch import forced_exit
from launcher.dispatch.environment import join_ranks
from launcher.dispatch.run_job import execute_job
from launcher.errors import REJECTED, ConfigError
from launcher.process import signals
from launcher.process.files import replace_file
from launcher.process.process_id import WORLD_SIZE, own_rank
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import is_held_in_job
from launcher.rundir.record import RunRecord
from launcher.slurm.causes import Budget
from launcher.slurm.own_record import is_superseded, own_record
from launcher.slurm.requeue import run_guarded
from launcher.slurm.sbatch import SCRIPT
from launcher.slurm.submission import FROZEN, read_frozen

SEVERAL_RUNS = "runs.txt"
"""A file in the folder of a job that an earlier version has submitted for several runs."""
RESULT = "result.json"
"""Result of a job that does not train."""


def run_task(path: Path) -> int:
    """Run the job of a frozen configuration; return the exit code for SLURM."""
    folder = RunFolder(path)
    if (path / SEVERAL_RUNS).exists():
        report([f"{path}: several runs in a job are left out; repeat the command of its runs."])
        return REJECTED
    if _is_submitted_again(folder):
        print(f"{path} has been submitted again since: nothing to do.", flush=True)
        return 0
    run_folder = _read_submitted_folder(folder)
    if run_folder is not None:
        report(
            [
                f"run.dir='{run_folder}': is not {path}, so this is no submission of it; use"
                " launcher.runs retry."
            ]
        )
        return REJECTED
    try:
        _work(folder)
        return 0
    except SystemExit as end:
        if end.code and not isinstance(end, signals.SignalExit):
            close(folder, f"ended with exit code {end.code}")
        raise
    except BaseException as error:
        messages = explain(error)
        report(messages or [traceback.format_exc().rstrip()])
        code = REJECTED if messages else 1
        close(folder, "; ".join(messages) or f"{type(error).__name__}: {error}", code)
        return code


def _is_submitted_again(folder: RunFolder) -> bool:
    """Return whether a later submission has replaced this job.

    Its submission was then killed, and repeated before SLURM had accepted the first job.
    """
    is_gone = SCRIPT in os.environ and not (folder.path / FROZEN).exists()
    return is_gone or is_superseded(folder)


def _read_submitted_folder(folder: RunFolder) -> Path | None:
    """Return the run's folder as its submission named it, if that is another folder.

    Then it was copied or moved, or belongs to somebody else. A submission is checked where it is
    made, so a job that SLURM starts again needs no check by a person.
    """
    try:
        run_folder = Path(read_frozen(folder)[0]["run"]["dir"])
    except (OSError, ValueError, LookupError, TypeError, ConfigError):
        # `_work` reports it.
        return None
    if folder.path.resolve().is_relative_to(run_folder.resolve()):
        return None
    return run_folder


def _work(folder: RunFolder) -> object:
    config = from_stored(*read_frozen(folder))
    dispatch = config.plain["dispatch"]
    alone = not join_ranks()
    forced_exit.arm(dispatch)

    def job() -> object:
        # Several ranks leave together, at the first decision of rank 0 (`ranks.on_main`).
        if alone:
            signals.check()
        return execute_job(config)

    is_own = folder.path.absolute() == config.folder.path.absolute()
    with hydra_job(config):
        return run_guarded(
            job if is_own else lambda: _run_and_record(folder, job), folder, Budget.of(dispatch)
        )


def _run_and_record(folder: RunFolder, job: Callable[[], object]) -> object:
    """Do a job that does not train, and write its attempt and its result into its own folder."""
    if own_rank() != 0:
        return job()
    record = RunRecord(folder)
    record.begin_attempt(
        start_step=0, max_steps=0, world_size=int(os.environ.get(WORLD_SIZE, 1)), strategy="none"
    )
    try:
        result = job()
    except signals.SignalExit as stop:
        name = signal.Signals(stop.signum).name
        record.end_attempt("preempted", end_step=0, signal=name, exit_code=int(stop.code or 0))
        raise
    except BaseException as error:
        reason = "; ".join(getattr(error, "messages", ())) or f"{type(error).__name__}: {error}"
        record.end_attempt("failed", end_step=0, exit_code=1, reason=reason[:500])
        raise
    replace_file(folder.path / RESULT, json.dumps(result, default=str).encode() + b"\n")
    record.end_attempt("completed", end_step=0, exit_code=0)
    return result


def close(folder: RunFolder, reason: str, exit_code: int = 1) -> None:
    """Record in run.json why a job ended before it began an attempt, which records its own end."""
    if own_rank() != 0 or is_held_in_job(folder):
        return
    record = own_record(folder)
    if record is not None and record.state in ("queued", "preempted"):
        record.add_failure("failed", exit_code=exit_code, reason=reason)
