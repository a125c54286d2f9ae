"""Find a job's record, and decide whether there is something to submit.

Training writes to its run's own folder. Any other job (evaluate, export, lr_find, check) leaves the
training's run.json and frozen configuration unchanged, and has a folder of its own, `<run
folder>/.jobs/<job>-<hash>/`.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from launcher.checkpoint.find import find_checkpoint
from launcher.config.construct import construct, target_object
from launcher.config.difference import diff, in_a_line
from launcher.config.options import TRAIN_JOB
from launcher.config.tree import get, of_the_run
from launcher.rundir.folder import RunFolder
from launcher.rundir.holder import is_held
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.shared_job import is_open
from launcher.slurm.submission import JobNote, frozen

JOBS = ".jobs"
OWN_JOBS = "launcher.jobs."


def trains(config: Mapping[str, Any]) -> bool:
    """Return whether the job trains.

    `job=train` does, and a user's job with `why_done`, such as a subclass of it. A job that cannot
    be imported here counts as one that trains.
    """
    target = str(config["job"]["_target_"])
    if target.startswith(OWN_JOBS):
        return target == TRAIN_JOB
    try:
        return hasattr(target_object(target), "why_done")
    except (ImportError, ValueError):
        return True


def training_of(config: Mapping[str, Any]) -> Any:
    """Construct the job that trains, or `TrainJob` if it cannot be imported here."""
    try:
        return construct(config["job"])
    except (ImportError, ValueError):
        return construct({"_target_": TRAIN_JOB})


def folder_of(config: Mapping[str, Any]) -> RunFolder:
    """Return the folder with the record of a job whose configuration is resolved."""
    run = Path(config["run"]["dir"]).absolute()
    if trains(config):
        return RunFolder(run)
    counting = {key: value for key, value in of_the_run(config).items() if key != "dispatch"}
    digest = sha256(json.dumps(counting, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return RunFolder(run / JOBS / f"{config['job']['_target_'].split('.')[-2]}-{digest}")


def why_skipped(
    config: Mapping[str, Any], folder: RunFolder, queue: Mapping[str, QueuedJob]
) -> str | None:
    """Return why a job is not submitted: it has nothing to do, is running or queued; or None.

    Args:
        config: resolved, as plain containers.
        folder: see `folder_of`.
        queue: jobs that have not ended, see `scheduler.queue`.
    """
    note = JobNote.read(folder)
    job = None if note is None else note.find_in(queue)
    if note is not None and note.is_shared and not is_open(folder, note.script):
        job = None
    training = training_of(config) if trains(config) else None
    if training is not None and (done := training.why_done(config)):
        return f"already {done}"
    if training is not None and is_held(folder):
        return "running"
    if job is not None:
        return (
            f"in the queue as job {job.id}"
            f" ({job.state.lower()}){_asked_differently(config, folder)}"
        )
    checkpoint = config["job"].get("checkpoint")
    if training is not None:
        training.check_resume(config)
    # Another job, on which this one depends, may save the checkpoint.
    elif checkpoint is not None and not get(config, "dispatch.sbatch.dependency"):
        checkpoints = RunFolder(config["run"]["dir"]).checkpoints
        find_checkpoint(checkpoints, checkpoint, "job.checkpoint", hashes=False)
    return None


def _asked_differently(config: Mapping[str, Any], folder: RunFolder) -> str:
    """Describe how the queued job's configuration differs from the command's, if so."""
    try:
        before, _ = frozen(folder)
    except (OSError, ValueError, KeyError):
        return ""
    now = json.loads(json.dumps({key: config[key] for key in config if key in before}, default=str))
    changes = diff(before, now, ignored=("dispatch", "run.identity"))
    return (
        f" with another configuration ({in_a_line(changes)}); cancel it to change that"
        if changes
        else ""
    )
