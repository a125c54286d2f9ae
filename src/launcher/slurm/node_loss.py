"""Command that a job's script calls when nodes are lost.

It is `python -m launcher.slurm.node_loss RUN_FOLDER NEXT NODE ...`.

It waits until the run's process has ended, and records in run.json which nodes were lost, and the
next action of the job.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from launcher.rundir.folder import RunFolder
from launcher.rundir.holder import is_held
from launcher.rundir.provenance import slurm_job_id
from launcher.rundir.record import RunRecord

MAX_BACKOFF = 120.0
"""Seconds that the ranks may take to end. SLURM kills them KillWait after the first of them has
ended."""


def main() -> int:
    path, following, *nodes = sys.argv[1:]
    return 0 if record_loss(RunFolder(Path(path)), following, nodes) else 1


def record_loss(
    folder: RunFolder, following: str, nodes: list[str], sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Record the lost nodes.

    Returns:
        Whether the run's process has ended, since another must not start before.
    """
    waited = 0.0
    while is_held(folder):
        if waited >= MAX_BACKOFF:
            return False
        sleep(0.2)
        waited += 0.2
    reason = f"lost {', '.join(nodes)}: {following}"
    print(f"SLURM job {slurm_job_id()} {reason}.", flush=True)
    if folder.record_path.exists():
        RunRecord(folder).revise("preempted", "killed", reason=reason, slurm_job_id=slurm_job_id())
    return True


if __name__ == "__main__":
    sys.exit(main())
