"""The report of a submission."""

import shlex
from collections.abc import Sequence

from launcher.dispatch.jobs import Job
from launcher.dispatch.skip_reasons import JOBS
from launcher.slurm.submission import LimitReached, NotNow


def report(runs: Sequence[Job], error: NotNow | None = None, waits: bool = False) -> None:
    """Print the job of each run of the command, or why it has none.

    `error` is why SLURM does not have all of them; with `waits`, the command submits these later.
    """
    rest = [run for run in runs if run.is_unsubmitted]
    submitted = [run for run in runs if run.job_id is not None]
    for run in runs:
        what = run.skipped or (f"SLURM job {run.job_id}" if run.job_id else "not submitted yet")
        print(f"{run.label}: {what}, {run.folder.path}", flush=True)
    jobs = sorted({str(run.job_id).partition("_")[0] for run in submitted}, key=int)
    jobs_text = f" as SLURM job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}" if jobs else ""
    if JOBS in runs[0].folder.path.parts:
        how = (
            f"To follow it: python -m launcher.runs logs -f {shlex.quote(str(runs[0].folder.path))}"
        )
    else:
        how = f"To list them: python -m launcher.runs --outputs {shlex.quote(str(runs[0].outputs))}"
    skipped = len(runs) - len(submitted) - len(rest)
    print(f"{len(submitted)} submitted{jobs_text}, {skipped} skipped. {how}", flush=True)
    if error is not None:
        then = "repeat the command when other jobs have ended"
        if waits:
            is_full = isinstance(error, LimitReached)
            then = "are submitted as other jobs end" if is_full else "are submitted later"
        print(f"{len(rest)} not submitted yet, since SLURM {error.why}; {then}.", flush=True)
