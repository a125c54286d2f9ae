"""The report of a submission."""

import shlex
from collections.abc import Sequence

from launcher.dispatch.jobs import Job
from launcher.dispatch.skip_reasons import JOBS
from launcher.slurm.submission import NotAnswered

MAX_SHOWN_RUNS = 20
"""Maximum number of listed submitted runs."""


def report(runs: Sequence[Job], due: Sequence[Job], waits: bool = False) -> None:
    """Print the job of each run of the command, or why it has none.

    `due` were to be submitted; with `waits`, the command submits the rest once there is room.
    """
    rest = [run for run in due if run.limit is not None]
    due = [run for run in due if run.limit is None]
    for run in runs[:MAX_SHOWN_RUNS]:
        what = run.skipped or (
            f"SLURM job {run.job_id}" if run.limit is None else "not submitted yet"
        )
        print(f"{run.label}: {what}, {run.folder.path}", flush=True)
    if len(runs) > MAX_SHOWN_RUNS:
        print(f"... and {len(runs) - MAX_SHOWN_RUNS} more")
    jobs = sorted({str(run.job_id).partition("_")[0] for run in due}, key=int)
    jobs_text = f" as SLURM job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}" if jobs else ""
    if JOBS in runs[0].folder.path.parts:
        how = (
            f"To follow it: python -m launcher.runs logs -f {shlex.quote(str(runs[0].folder.path))}"
        )
    else:
        how = f"To list them: python -m launcher.runs --outputs {shlex.quote(str(runs[0].outputs))}"
    skipped = len(runs) - len(due) - len(rest)
    print(f"{len(due)} submitted{jobs_text}, {skipped} skipped. {how}", flush=True)
    if rest:
        is_silent = rest[0].limit == NotAnswered.limit
        why = "does not answer" if is_silent else f"has no room ({rest[0].limit})"
        then = "repeat the command when other jobs have ended"
        if waits:
            then = "are submitted later" if is_silent else "are submitted as other jobs end"
        print(f"{len(rest)} not submitted yet, since SLURM {why}; {then}.", flush=True)
