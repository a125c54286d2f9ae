"""Record in run.json why a job failed before its run had started, or ended without a word.

A job's script calls `python -m launcher.slurm.not_started FOLDER EXIT_CODE COMMAND [started]`, the
second if run.json still says that the run runs. FOLDER is the run's.
"""

import re
import signal
import sys
from pathlib import Path
from typing import Literal

from launcher.process.child import describe_end, last_lines
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.rundir.lock_holder import is_held_in_job
from launcher.rundir.provenance import restart_count, slurm_job_id
from launcher.slurm import scheduler
from launcher.slurm.causes import cause_of
from launcher.slurm.own_record import own_record

OPEN = ("queued", "running", "preempted")
NOISE = re.compile(
    r"srun: (Terminating|launch/|error: .*: tasks? .*: (Exited|Terminated|Killed|Aborted))"
    r"|slurmstepd: error: \*\*\*|Try \"srun --help"
)
MAX_LINES = 100
"""Number of lines at the end of the job's log that are searched."""
UNRECORDED_CODE = 100
"""Our exit code for a run that has failed although its process ended with 0."""


def main() -> int:
    path, code, command, *has_started = sys.argv[1:]
    folder = RunFolder(Path(path))
    is_recorded = False
    if not has_started:
        is_recorded = record_failure(folder, int(code), command)
    elif code == "0" or end_of_job() == "failed":
        is_recorded = record_silent_end(folder, int(code))
    return UNRECORDED_CODE if is_recorded and code == "0" else 0


def silent_end(code: int) -> str:
    """Explain the end of a process that has recorded none, by its exit code in a shell."""
    # A shell adds 128 to a signal.
    signum = code - 128
    if signum in signal.valid_signals():
        return f"its process {describe_end(-signum)}"
    return (
        f"its process ended with exit code {code} in the middle of the run, without an error"
        " (os._exit?)"
    )


def record_silent_end(folder: RunFolder, code: int = 0) -> bool:
    """Record an end in the middle of the run, and return whether there was one."""
    record = own_record(folder)
    job = slurm_job_id()
    reason = silent_end(code)
    attempt = None if record is None else record.attempt
    if (
        record is None
        or not attempt
        or attempt.get("outcome") is not None
        or attempt.get("slurm_job_id") != job
        or is_held_in_job(folder)
    ):
        return False
    print(f"SLURM job {job}: failed: {reason}", flush=True)
    # Taking the lock also removes the process's, which looks alive from other nodes for a while.
    with RunLock(folder):
        record.revise("failed", exit_code=1, reason=reason, slurm_job_id=job)
    return True


def record_failure(folder: RunFolder, exit_code: int, command: str) -> bool:
    """Record the failure, unless a process is on the run or SLURM starts the job again.

    Args:
        folder: the run's folder.
        exit_code: the exit code of the command.
        command: the command of the job's script that failed.
    """
    record = own_record(folder)
    job = slurm_job_id()
    if record is None or record.state not in OPEN or is_held_in_job(folder) or job is None:
        return False
    outcome = end_of_job()
    if outcome is None:
        return False
    reason = f"'{command}' ended the job with exit code {exit_code}, before the run started"
    line = last_line(folder.logs / f"slurm-{job}.log")
    record.add_failure(outcome, exit_code=exit_code, reason=f"{reason}: {line}" if line else reason)
    return True


def end_of_job() -> Literal["cancelled", "failed"] | None:
    """Return how this job ends, or None if SLURM starts it again."""
    try:
        info = scheduler.job_info(str(slurm_job_id()))
        cause = cause_of(info, signal.SIGTERM, restart_count())
    # Perhaps `setup` has hidden scontrol.
    except scheduler.SchedulerError:
        return "failed"
    if cause in ("requeued", "preempted"):
        return None
    return "cancelled" if cause == "cancelled" else "failed"


def last_line(log: Path) -> str:
    """Return a log's last informative line, or "", since at the end srun repeats the exit code."""
    lines = [line.strip() for line in last_lines(log, MAX_LINES)]
    return next((line for line in reversed(lines) if line and not NOISE.match(line)), "")


if __name__ == "__main__":
    sys.exit(main())
