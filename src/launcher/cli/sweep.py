"""The jobs of a sweep, which are all checked before the first one starts.

The plugins in `hydra_plugins.launcher_dispatch` call this. A dispatch with a method `sweep(jobs,
task) -> Sequence[JobReturn]` gets the whole list (for an array of jobs on a cluster). Otherwise
they run here, one by one.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from launcher.cli.composer import Composer
from launcher.cli.parallel import Queue, outcome
from launcher.cli.sweep_job import SweepJob, completed
from launcher.config.construct import construct
from launcher.config.difference import diff
from launcher.config.explain import unwrapped, user_traceback
from launcher.config.identity import register_hydra
from launcher.config.metric_direction import ranked
from launcher.config.options import TRAIN_JOB
from launcher.config.session import returned
from launcher.config.tree import get, of_the_run
from launcher.errors import ConfigError, TrainingError
from launcher.process import signals
from launcher.runs.filters import number
from launcher.runs.listing import table
from launcher.runs.objective import OWN_SWEEPERS
from launcher.runs.stored_run import StoredRun
from launcher.runs.table import terminal_width

MAX_REPEATS = 3
"""Maximum number of pairs of jobs with one id in a message."""


def check_jobs(
    loader: ConfigLoader,
    master: DictConfig,
    overrides: Sequence[Sequence[str]],
    first_index: int = 0,
) -> list[SweepJob]:
    """Compose and validate the jobs of a sweep.

    Raises:
        hydra.errors.HydraException: some overrides do not compose.
    """
    register_hydra()
    composer = Composer(loader, master)
    common = (
        frozenset.intersection(*map(frozenset, overrides))
        if len(overrides) > 1
        else frozenset[str]()
    )
    jobs: list[SweepJob] = []
    issues: dict[str, list[SweepJob]] = {}
    runs: dict[str, SweepJob] = {}
    repeats: list[tuple[SweepJob, SweepJob]] = []
    for index, job_overrides in enumerate(overrides, first_index):
        job = SweepJob(
            index, list(job_overrides), composer, common=common, count=first_index + len(overrides)
        )
        jobs.append(job)
        try:
            job.check()
        except ConfigError as error:
            for message in error.messages:
                issues.setdefault(message, []).append(job)
            continue
        for group in ("hydra/sweeper", "hydra/launcher"):
            choice = job.hydra["runtime"]["choices"][group]
            if choice != master.hydra.runtime.choices[group]:
                message = f"{group}={choice}: an option that is swept cannot choose it; type it."
                issues.setdefault(message, []).append(job)
        if (twin := runs.setdefault(job.plain["run"]["dir"], job)) is not job:
            repeats.append((twin, job))
    if issues or repeats:
        raise ConfigError(
            *(_located(message, of, len(jobs)) for message, of in issues.items()),
            *_same_runs(repeats),
        )
    if composer.continued:
        changes = "; ".join(dict.fromkeys(composer.continued.values()))
        print(
            f"{len(composer.continued)} of {len(jobs)} jobs continue runs of an equivalent"
            f" configuration: {changes}."
        )
    return jobs


def _located(message: str, jobs: Sequence[SweepJob], count: int) -> str:
    """Return the message with the first job that it is about, unless it is about all."""
    overrides = jobs[0].own_overrides
    if len(jobs) >= count or any(
        message.startswith(override.lstrip("+")) for override in overrides
    ):
        return message
    others = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{message.rstrip('.')} (job {jobs[0].index + 1}{others}: {' '.join(overrides)})."


def _same_runs(repeats: Sequence[tuple[SweepJob, SweepJob]]) -> list[str]:
    """Return messages for the first pairs of jobs with one id, and the number of further ones."""
    messages = [_same_run(*pair) for pair in repeats[:MAX_REPEATS]]
    if more := len(repeats[MAX_REPEATS:]):
        messages.append(f"{more} more jobs of the sweep repeat a run.")
    return messages


def _same_run(first: SweepJob, second: SweepJob) -> str:
    """Return the message that rejects two jobs with one id, with the keys in which they differ."""
    keys = diff(first.plain, second.plain)
    same = (
        f"jobs {first.index + 1} and {second.index + 1} of the sweep are the same run, {second.run}"
    )
    if not keys:
        return f"{' '.join(second.overrides)}: {same}; remove one, or give each its own run.tag."
    if "run.identity" in keys:
        run_id = second.plain["run"]["id"]
        return f"run.id={run_id}: {same}; leave it out, or give each job its own."
    return (
        f"{', '.join(keys)}: {same}, since this key does not count (see docs/naming.md); sweep over"
        " another key, or give each job its own run.tag."
    )


def run_jobs(
    jobs: Sequence[SweepJob], task: TaskFunction, context: HydraContext
) -> Sequence[JobReturn]:
    """Run the jobs through their dispatch; a failing job does not stop the others.

    Raises:
        SystemExit: a signal arrived; the remaining jobs do not start.
    """
    if not jobs:
        return []
    if any(job.plain["dispatch"] != jobs[0].plain["dispatch"] for job in jobs):
        raise ConfigError(
            "dispatch: all jobs of a sweep must have the same dispatch; sweep over other keys."
        )
    dispatch = construct(jobs[0].plain["dispatch"])
    if hasattr(dispatch, "sweep"):
        results: Sequence[JobReturn] = dispatch.sweep(jobs, task)
        return results
    is_complete: IsComplete | None = getattr(dispatch, "is_complete", None)
    fail_fast = bool(get(jobs[0].plain, "sweep.fail_fast"))
    slots = min(len(jobs), dispatch.slots()) if hasattr(dispatch, "slots") else 1
    if slots > 1:
        return Queue(
            jobs,
            slots,
            lambda job: is_complete is not None and _is_done(job, is_complete),
            fail_fast,
        ).run()
    return _run_in_turn(jobs, task, context, is_complete, fail_fast)


IsComplete = Callable[[Mapping[str, object]], bool]


def _run_in_turn(
    jobs: Sequence[SweepJob],
    task: TaskFunction,
    context: HydraContext,
    is_complete: IsComplete | None,
    fail_fast: bool = False,
) -> list[JobReturn]:
    results: list[JobReturn] = []
    for job in jobs:
        try:
            signals.check()
            print(f"{job.label}: starts", flush=True)
            is_done = is_complete is not None and _is_done(job, is_complete)
            result = completed(job) if is_done else _run(job, task, context)
        except SystemExit as stop:
            print(
                f"{job.label}: stopped, and {len(jobs) - len(results) - 1} more not started",
                flush=True,
            )
            raise stop
        results.append(result)
        is_completed = result.status == JobStatus.COMPLETED
        text = f"completed{outcome(job)}" if is_completed else reason(job, result)
        print(f"{job.label}: {text}", flush=True)
        if fail_fast and result.status == JobStatus.FAILED:
            print(
                f"sweep.fail_fast: {len(jobs) - len(results)} not started",
                file=sys.stderr,
                flush=True,
            )
            raise SystemExit(1)
    return results


def _is_done(job: SweepJob, is_complete: IsComplete) -> bool:
    """Return whether a job's run is complete, so that the job need not start.

    It starts all the same for another package's sweeper, for `job.objective`, and for a user's
    callback.
    """
    plain, hydra = job.plain, job.hydra
    is_own = (
        hydra["runtime"]["choices"]["hydra/sweeper"] in OWN_SWEEPERS
        and get(plain, "job.objective") is None
    )
    if (
        not is_own
        or len(hydra["callbacks"]) > 1
        or StoredRun.read(job.folder).record.get("state") != "completed"
    ):
        return False
    try:
        return is_complete(of_the_run(plain))
    except Exception:
        # It is reported when the job starts.
        return False


def _run(job: SweepJob, task: TaskFunction, context: HydraContext) -> JobReturn:
    """Run one job by Hydra's own `run_job`; an exit that no signal caused is its result."""
    try:
        result = run_job(
            task_function=task,
            config=job.config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=context,
        )
    except SystemExit as stop:
        if isinstance(stop, signals.SignalExit) or (
            isinstance(stop.code, int) and stop.code >= 128
        ):
            raise
        result = JobReturn(overrides=job.overrides, cfg=job.config)
        result.status, result.return_value = JobStatus.FAILED, stop
    error = returned(result)
    if result.status == JobStatus.FAILED and not isinstance(error, (SystemExit, TrainingError)):
        print(user_traceback(error), end="", file=sys.stderr, flush=True)
    return result


def reason(job: SweepJob, result: JobReturn) -> str:
    """Return the reason of a job's failure in a line."""
    error = unwrapped(returned(result))
    if not isinstance(error, SystemExit):
        return f"failed: {type(error).__name__}: {first_line(str(error))}"
    if notes := getattr(error, "__notes__", None):
        return f"rejected: {notes[0]}"
    attempts = StoredRun.read(job.folder).attempts
    recorded = attempts[-1].get("reason") if attempts else None
    return f"failed: {first_line(recorded)}" if recorded else f"failed with exit code {error.code}"


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def show_ranking(jobs: Sequence[SweepJob]) -> None:
    """Print the runs that trained, best first, if one metric and direction judges them all."""
    runs = [StoredRun.read(job.folder) for job in jobs if job.plain["job"]["_target_"] == TRAIN_JOB]
    judged = {run.judged_by for run in runs if run.judged_by is not None}
    if len(runs) < 2 or not judged or any(run.state in ("queued", "running") for run in runs):
        return
    if len(judged) > 1:
        followed = ", ".join(sorted(f"{metric} ({mode})" for metric, mode in judged))
        print(f"Not ranked, since the runs follow different metrics: {followed}.")
        return
    ((metric, mode),) = judged
    print(f"Ranked by {metric}:")
    # JSON has no infinity, so run.json has it as text.
    in_order = ranked(runs, lambda run: number(run.best.get("value")), mode)
    table(in_order, time.time(), terminal_width()).print()


def conclude(jobs: Sequence[SweepJob], results: Sequence[JobReturn]) -> None:
    """Print the ranking; exit with code 1 and a table of the failed jobs, if there are any."""
    show_ranking(jobs)
    failed = [
        (job, result)
        for job, result in zip(jobs, results, strict=False)
        if result.status == JobStatus.FAILED
    ]
    if failed:
        width = max(len(job.label) for job, _ in failed)
        lines = [f"  {job.label:<{width}}  {reason(job, result)}" for job, result in failed]
        print(
            "\n".join([f"{len(failed)} of {len(jobs)} jobs failed:", *lines]),
            file=sys.stderr,
            flush=True,
        )
        raise SystemExit(1)
