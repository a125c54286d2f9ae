"""Find a job's record, and decide whether there is something to submit.

Training writes to its run's own folder. Any other job (evaluate, export, lr_find, check) leaves the
training's run.json and frozen configuration unchanged, and has a folder of its own, `<run
folder>/.jobs/<job>-<hash>/`.
"""

import json
from collections.abc import Mapping
from hashlib import sha256

from launcher.checkpoint.find_checkpoint import find_checkpoint
from launcher.config.run_config import RunConfig
from launcher.config.tree import get, with_text_keys
from launcher.remaining import Done, Train, find_queued, remaining
from launcher.rundir.folder import RunFolder
from launcher.slurm.scheduler import QueuedJob

JOBS = ".jobs"


def folder_of(config: RunConfig) -> RunFolder:
    """Return the folder with the record of a job."""
    run = config.folder.path.absolute()
    if config.trains:
        return RunFolder(run)
    stored = config.of_the_run
    ignored = {"dispatch": None, "run": {**stored["run"], "identity": None, "sweep": None}}
    content = with_text_keys(stored | ignored)
    text = json.dumps(content, sort_keys=True, default=str)
    digest = sha256(text.encode()).hexdigest()[:8]
    return RunFolder(run / JOBS / f"{config.plain['job']['_target_'].split('.')[-2]}-{digest}")


def why_skipped(config: RunConfig, folder: RunFolder, queue: Mapping[str, QueuedJob]) -> str | None:
    """Return why a job is not submitted: it has nothing to do, is running or queued; or None.

    Args:
        config: what the command requests.
        folder: see `folder_of`.
        queue: jobs that have not ended, see `scheduler.queue`.
    """
    if config.trains:
        rest = remaining(config, folder, queue)
        if isinstance(rest, Train):
            return None
        return f"already {rest}" if isinstance(rest, Done) else str(rest)
    queued = find_queued(config, folder, queue)
    if queued is not None:
        return str(queued)
    checkpoint = config.plain["job"].get("checkpoint")
    # Another job, on which this one depends, may save the checkpoint.
    if checkpoint is not None and not get(config.plain, "dispatch.sbatch.dependency"):
        find_checkpoint(config.folder.checkpoints, checkpoint, "job.checkpoint", hashes=False)
    return None
