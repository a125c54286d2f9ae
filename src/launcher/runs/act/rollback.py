"""Set a run back to one of its checkpoints: the next start continues from there."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from launcher.checkpoint.find_checkpoint import checkpoint_path, damage_error, missing_checkpoint
from launcher.checkpoint.manifest import CorruptCheckpoint, verify
from launcher.checkpoint.store import BEST, CheckpointStore, read_best
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.process.files import name_abandoned
from launcher.process.plural import plural
from launcher.rundir.folder import RunFolder, image_folders
from launcher.rundir.lock import RunLock
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import BestData
from launcher.rundir.step_lines import set_lines_aside
from launcher.runs.find_runs import RUN_HELP, find_run
from launcher.runs.slurm_jobs import ask_queue
from launcher.runs.stored_run import StoredRun
from launcher.slurm import scheduler
from launcher.slurm.job_mark import HOLD
from launcher.slurm.requeue import PAUSE, QUERY_SECONDS

FILES = ("metrics.jsonl", "media.jsonl", "evaluations.jsonl", "chain.jsonl")
"""Files with lines of steps."""


def add_arguments(parser: Parser) -> None:
    parser.argument("run", "RUN", RUN_HELP)
    parser.argument("step", "STEP", "the step of a checkpoint (1400), or best")


def run(arguments: argparse.Namespace) -> int:
    run = find_run(arguments.run, arguments.outputs)
    if not run.record:
        raise ConfigError(f"'{run.label}': its run.json cannot be read; repair it first.")
    folder = run.folder
    store = CheckpointStore(folder.checkpoints, names=run.names)
    folder.check_links()
    if folder.checkpoints.is_symlink() and run.is_copied:
        raise ConfigError(f"'{run.label}': is a copy, and its checkpoints are the original's.")
    if run.has_foreign_checkpoints:
        raise ConfigError(
            f"'{run.label}': checkpoints is a link to {os.path.realpath(folder.checkpoints)}, which"
            " hooks.checkpointing.path of a configuration with your signature does not name."
        )
    step = step_to_keep(store, arguments.step)
    ask_queue([run])
    with job_on_hold(run), RunLock(folder) as lock, folder.explain_write_errors():
        names, lines = roll_back(folder, store, step, RunRecord(folder, check_lock=lock.check))
        report(run, step, names, lines)
    return 0


def report(run: StoredRun, step: int, names: Sequence[str], lines: int) -> None:
    """Print what was set aside, and what starts the run again."""
    for name in names:
        print(f"Set aside: {run.folder.checkpoints / name}")
    if lines:
        print(f"Set aside: {plural(lines, 'line')}, in {run.folder.path}/abandoned-*.jsonl")
    if names or lines:
        text = f" is at step {step}. Its next start continues from there{job_of(run)}."
    else:
        hint = f" It starts{job_of(run)}." if is_held_by_user(run) else ""
        text = f": step {step} is its newest: nothing to do.{hint}"
    print(f"{run.label}{text}", flush=True)


def is_held_by_user(run: StoredRun) -> bool:
    return run.job is not None and run.job.is_held and not HOLD.is_of(run.folder, run.job.id)


@contextmanager
def job_on_hold(run: StoredRun) -> Iterator[None]:
    """Keep the run's SLURM job from starting within the context: the run is locked.

    A mark on disk lets the repeated command release what this one could not.
    """
    job = run.job
    if job is None or is_held_by_user(run):
        yield
        return
    if not job.is_pending:
        raise ConfigError(
            f"'{run.label}': SLURM job {job.id} is {job.state.lower()}; first: cancel {run.id}."
        )
    with run.folder.explain_write_errors():
        HOLD.write(run.folder, job.id)
    try:
        scheduler.hold(job.id)
    except scheduler.SchedulerError as error:
        # Without an answer, SLURM may hold it.
        if not isinstance(error, scheduler.NoAnswer):
            HOLD.remove(run.folder)
        raise ConfigError(f"'{run.label}': {error}.") from error
    try:
        yield
    finally:
        release(run, job.id)
        HOLD.remove(run.folder)


def release(run: StoredRun, job: str) -> None:
    """Release a job, and ask again for minutes while SLURM does not answer."""
    until = time.monotonic() + QUERY_SECONDS
    is_reported = False
    while True:
        try:
            scheduler.release(job)
            return
        except scheduler.SchedulerError as error:
            is_over = not isinstance(error, scheduler.NoAnswer) or time.monotonic() >= until
            if is_over:
                raise ConfigError(
                    f"'{run.label}': SLURM job {job} is still on hold ({error}); repeat the"
                    f" command, or: scontrol release {job}."
                ) from error
            if not is_reported:
                print(
                    f"{run.label}: SLURM job {job} is on hold: {error}. Asking again for"
                    f" {QUERY_SECONDS:g} s; after that, or Ctrl-C, repeat the command.",
                    file=sys.stderr,
                    flush=True,
                )
            is_reported = True
        time.sleep(PAUSE)


def job_of(run: StoredRun) -> str:
    """Name the job of a run that waits in SLURM's queue, and how a job on hold is released."""
    if run.job is None:
        return ""
    hint = f", once it is released: scontrol release {run.job.id}"
    return f", by SLURM job {run.job.id}{hint if is_held_by_user(run) else ''}"


def step_to_keep(store: CheckpointStore, word: str) -> int:
    """Return the step that a word names, whose checkpoint is valid."""
    named = word.removeprefix("step-")
    if not named.isdecimal() and named != BEST:
        raise ConfigError(f"'{word}': should be the step of a checkpoint, or best.")
    steps = [step for step in store.steps() if store.is_own(store.path(step))]
    path = checkpoint_path(store.root, named)
    step = -1 if path is None else int(path.name.removeprefix("step-"))
    if path is None or step not in steps:
        raise missing_checkpoint(store.root, named, "STEP")
    try:
        verify(path)
    except CorruptCheckpoint as error:
        raise damage_error("STEP", word, path, error) from error
    return step


def roll_back(
    folder: RunFolder, store: CheckpointStore, step: int, record: RunRecord
) -> tuple[list[str], int]:
    """Set aside what is later than a step; return the checkpoints' new names, and a count of lines.

    A kill at any moment leaves a run that resumes from its newest checkpoint, and the repeated
    command does the rest.
    """
    if not store.path(step).is_dir():
        raise ConfigError(f"{store.path(step)}: was deleted in the meantime; choose another step.")
    store.recover()
    if store.steps_with_broken()[-1] > step:
        record.reopen()
    names = store.abandon(step)
    lines = sum(set_lines_aside(folder.path / name, step) for name in FILES)
    set_images_aside(folder.path / "images", step)
    if names or lines or record.step > step:
        record.roll_back(step, best_checkpoint(store, step))
    return names, lines


def set_images_aside(images: Path, step: int) -> None:
    for at, entry in image_folders(images):
        if at > step:
            os.rename(entry, name_abandoned(entry))


def best_checkpoint(store: CheckpointStore, step: int) -> BestData | None:
    """Return the best value of the run up to a step, as its checkpoint has stored it."""
    best = read_best(store.path(step))
    if best is None or not {"metric", "value"} <= best.keys() or not best["value"]:
        return None
    return {"metric": str(best["metric"]), "value": float(best["value"]), "step": best["step"]}
