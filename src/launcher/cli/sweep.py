"""The jobs of a sweep, which are all checked before the first one starts.

A dispatch with a method `sweep(jobs) -> Sequence[JobResult]` gets the whole list (for an array of
jobs on a cluster). Otherwise they run here, one by one.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from omegaconf import DictConfig

from launcher.cli.branches import in_order
from launcher.cli.parallel import Queue, outcome
from launcher.cli.start import start
from launcher.cli.sweep_job import SweepJob
from launcher.config.compose import Command
from launcher.config.construct import construct, target_object
from launcher.config.difference import diff
from launcher.config.explain import unwrapped, user_traceback
from launcher.config.grid import GRID_SWEEPERS
from launcher.config.hydra_job import Callbacks
from launcher.config.metric_direction import ranked
from launcher.config.options import TRAIN_JOB
from launcher.config.plain import to_plain
from launcher.config.run_config import RunConfig
from launcher.config.schema import check_hydra
from launcher.config.tree import get
from launcher.dispatch.result import JobResult
from launcher.errors import ConfigError, TrainingError
from launcher.process import signals
from launcher.process.table import terminal_width
from launcher.runs.filters import number
from launcher.runs.listing import table
from launcher.runs.objective import OWN_SWEEPERS
from launcher.runs.stored_run import StoredRun

Mistaken = tuple[int, list[str]]
"""The number of a job with an error, and the overrides that not all jobs share."""
MAX_REPEATS = 3
"""Maximum number of pairs of jobs with one id in a message."""


def sweep(words: Command) -> bool:
    """Run the jobs of a command; return whether it has no launcher or sweeper of another package.

    Raises:
        ConfigError: with a message for each mistake in any job.
    """
    sweeper, launcher = words.choice("hydra/sweeper"), words.choice("hydra/launcher")
    master = words.master
    if master is None:
        # The jobs say why.
        check_jobs(words, words.expand())
        return True
    check_hydra(to_plain(master))
    search = getattr(target_object(master.hydra.sweeper._target_), "search", None)
    if search is not None:
        with _notified(words, master):
            search(words, master)
        return True
    if sweeper not in GRID_SWEEPERS:
        return False
    jobs = check_jobs(words, words.expand())
    if launcher != "dispatch":
        return False
    with _notified(words, master):
        conclude(jobs, [result for batch in batches(words, jobs) for result in run_jobs(batch)])
    return True


def batches(words: Command, jobs: Sequence[SweepJob]) -> list[Sequence[SweepJob]]:
    """Divide the jobs by `hydra.sweeper.max_batch_size`."""
    size = words.batch_size or max(1, len(jobs))
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


@contextmanager
def _notified(words: Command, master: DictConfig) -> Iterator[None]:
    """Call the user's callbacks around the sweep."""
    callbacks = Callbacks(master)
    name = words.composer.config_name
    callbacks.call("on_multirun_start", config_name=name)
    yield
    callbacks.call("on_multirun_end", config_name=name)


def check_jobs(
    words: Command, overrides: Sequence[Sequence[str]], first_index: int = 0
) -> list[SweepJob]:
    """Compose and check the jobs of a sweep.

    Raises:
        ConfigError: with a message for each mistake in any job.
    """
    common = (
        frozenset.intersection(*map(frozenset, overrides))
        if len(overrides) > 1
        else frozenset[str]()
    )
    jobs: list[SweepJob] = []
    issues: dict[str, list[Mistaken]] = {}
    reported: dict[object, str] = {}
    runs: dict[str, SweepJob] = {}
    repeats: list[tuple[SweepJob, SweepJob]] = []
    for index, job_overrides in enumerate(overrides, first_index):
        own = [override for override in job_overrides if override not in common]
        try:
            config = words.job(job_overrides, index, reported)
            _check_plugins(config, words)
        except ConfigError as error:
            for message in error.messages:
                issues.setdefault(message, []).append((index, own))
            continue
        count = first_index + len(overrides)
        job = SweepJob(index, list(job_overrides), config, common, count)
        jobs.append(job)
        if (twin := runs.setdefault(job.plain["run"]["dir"], job)) is not job:
            repeats.append((twin, job))
    if issues or repeats or words.issues:
        raise ConfigError(
            *words.issues,
            *(_located(message, of, len(overrides)) for message, of in issues.items()),
            *_same_runs(repeats),
        )
    if continued := list(filter(None, (job.config.news for job in jobs))):
        print(
            f"{len(continued)} of {len(jobs)} jobs continue runs of an equivalent"
            f" configuration: {'; '.join(dict.fromkeys(continued))}."
        )
    return jobs


def _check_plugins(config: RunConfig, words: Command) -> None:
    for group in ("hydra/sweeper", "hydra/launcher"):
        choice = config.choices[group]
        if choice != words.choice(group):
            raise ConfigError(
                f"{group}={choice}: an option that is swept cannot choose it; type it."
            )


def _located(message: str, jobs: Sequence[Mistaken], count: int) -> str:
    """Return the message with the first job that it is about, unless it is about all."""
    index, overrides = jobs[0]
    if len(jobs) >= count or any(
        message.startswith(override.lstrip("+")) for override in overrides
    ):
        return message
    others = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{message.rstrip('.')} (job {index + 1}{others}: {' '.join(overrides)})."


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


def run_jobs(jobs: Sequence[SweepJob]) -> list[JobResult]:
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
    if all(job.config.run.share_prefix and job.config.trains for job in jobs):
        planned = in_order(jobs)
        results = dict(zip((job.index for job in planned), _run_jobs(planned), strict=True))
        return [results[job.index] for job in jobs]
    return _run_jobs(jobs)


def _run_jobs(jobs: Sequence[SweepJob]) -> list[JobResult]:
    dispatch = construct(jobs[0].plain["dispatch"])
    if hasattr(dispatch, "sweep"):
        return list(dispatch.sweep(jobs))
    is_complete: IsComplete | None = getattr(dispatch, "is_complete", None)
    fail_fast = bool(get(jobs[0].plain, "sweep.fail_fast"))
    slots = min(len(jobs), dispatch.slots()) if hasattr(dispatch, "slots") else 1

    def is_done(job: SweepJob) -> bool:
        return is_complete is not None and _is_done(job, is_complete)

    if slots > 1:
        return Queue(jobs, slots, is_done, fail_fast).run()
    return _run_in_turn(jobs, is_done, fail_fast)


IsComplete = Callable[[Mapping[str, object]], bool]


def _run_in_turn(
    jobs: Sequence[SweepJob], is_done: Callable[[SweepJob], bool], fail_fast: bool
) -> list[JobResult]:
    results: list[JobResult] = []
    for job in jobs:
        try:
            signals.check()
            print(f"{job.label}: starts", flush=True)
            result = JobResult() if is_done(job) else _run(job)
        except SystemExit as stop:
            print(
                f"{job.label}: stopped, and {len(jobs) - len(results) - 1} more not started",
                flush=True,
            )
            raise stop
        results.append(result)
        text = f"completed{outcome(job)}" if result.error is None else reason(job, result)
        print(f"{job.label}: {text}", flush=True)
        if fail_fast and result.error is not None:
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
    plain = job.plain
    is_own = (
        job.config.choices["hydra/sweeper"] in OWN_SWEEPERS and get(plain, "job.objective") is None
    )
    if (
        not is_own
        or get(job.config.hydra, "callbacks")
        or StoredRun.read(job.folder).record.get("state") != "completed"
    ):
        return False
    try:
        return is_complete(job.config.of_the_run)
    except Exception:
        # It is reported when the job starts.
        return False


def _run(job: SweepJob) -> JobResult:
    """Run one job; an exit that no signal caused is its result."""
    try:
        return JobResult(start(job.config))
    except SystemExit as stop:
        if isinstance(stop, signals.SignalExit) or (
            isinstance(stop.code, int) and stop.code >= 128
        ):
            raise
        return JobResult(error=stop)
    except Exception as error:
        if not isinstance(error, TrainingError):
            print(user_traceback(error), end="", file=sys.stderr, flush=True)
        return JobResult(error=error)


def reason(job: SweepJob, result: JobResult) -> str:
    """Return the reason of a job's failure in a line."""
    assert result.error is not None
    error = unwrapped(result.error)
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


def conclude(jobs: Sequence[SweepJob], results: Sequence[JobResult]) -> None:
    """Print the ranking; exit with code 1 and a table of the failed jobs, if there are any."""
    show_ranking(jobs)
    failed = [
        (job, result)
        for job, result in zip(jobs, results, strict=False)
        if result.error is not None
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
