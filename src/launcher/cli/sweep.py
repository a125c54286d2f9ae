"""The jobs of a sweep, which are all checked before the first one starts.

A dispatch with a method `sweep(jobs) -> Sequence[JobResult]` gets the whole list (for an array of
jobs on a cluster). Otherwise they run here, see `launcher.cli.sweep_queue`.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from omegaconf import DictConfig

from launcher.cli.branches import in_order
from launcher.cli.sweep_queue import SweepQueue, reason
from launcher.config.compose.composer import Command
from launcher.config.compose.grid import GRID
from launcher.config.compose.hydra_job import Callbacks
from launcher.config.compose.resolve import resolve_part
from launcher.config.construct import construct, target_object
from launcher.config.identity.difference import diff
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.run_config import RunConfig
from launcher.config.schema.metric_direction import sort_best_first
from launcher.config.schema.validate import check_hydra
from launcher.config.tree import get
from launcher.dispatch.jobs import Job, JobResult
from launcher.errors import ConfigError
from launcher.process.plural import plural
from launcher.process.text_table import terminal_width
from launcher.runs.filters import number
from launcher.runs.look.listing import table
from launcher.runs.objective import OWN_SWEEPERS
from launcher.runs.stored_run import StoredRun

logger = logging.getLogger(__name__)
OF_ONE_JOB = ("job", "run", "sweep", "runtime", "overrides")
"""Nodes of Hydra's that each job of a sweep has for itself."""
Mistaken = tuple[int, list[str]]
"""The number of a job with an error, and the overrides that not all jobs share."""


def sweep(words: Command) -> list[Job] | None:
    """Run the jobs of a command, unless it has a launcher or a sweeper of another package.

    Returns:
        None, or what Hydra has to run: the jobs, as far as they are known before.
    Raises:
        ConfigError: with a message for each mistake in any job.
    """
    sweeper, launcher = words.choice("hydra/sweeper"), words.choice("hydra/launcher")
    master = words.master
    if master is None:
        # The jobs say why.
        check_jobs(words, words.expand())
        return None
    check_hydra(to_plain(master)["hydra"])
    resolve_part(master, "hydra", left_out=OF_ONE_JOB)
    search = getattr(target_object(master.hydra.sweeper._target_), "search", None)
    if search is not None:
        with _notify_callbacks(words, master):
            search(words, master)
        return None
    words.report_unused()
    if sweeper != GRID:
        if words.issues:
            raise ConfigError(*words.issues)
        return []
    jobs = check_jobs(words, words.expand())
    if launcher != "dispatch":
        return jobs
    with _notify_callbacks(words, master):
        conclude(jobs, [result for batch in batches(words, jobs) for result in run_jobs(batch)])
    return None


def batches(words: Command, jobs: Sequence[Job]) -> list[Sequence[Job]]:
    """Divide the jobs by `hydra.sweeper.max_batch_size`."""
    size = words.batch_size or max(1, len(jobs))
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


@contextmanager
def _notify_callbacks(words: Command, master: DictConfig) -> Iterator[None]:
    """Call the user's callbacks around the sweep."""
    callbacks = Callbacks(master)
    name = words.composer.config_name
    callbacks.call("on_multirun_start", config_name=name)
    yield
    callbacks.call("on_multirun_end", config_name=name)


def check_jobs(
    words: Command, overrides: Sequence[Sequence[str]], first_index: int = 0
) -> list[Job]:
    """Compose and check the jobs of a sweep.

    Raises:
        ConfigError: with a message for each mistake in any job.
    """
    common = frozenset[str]()
    if len(overrides) > 1:
        common = frozenset.intersection(*map(frozenset, overrides))
    jobs: list[Job] = []
    issues: dict[str, list[Mistaken]] = {}
    reported: dict[object, str] = {}
    runs: dict[str, Job] = {}
    repeats: list[tuple[Job, Job]] = []
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
        job = Job(config, index, list(job_overrides), common, count)
        jobs.append(job)
        if (twin := runs.setdefault(job.plain["run"]["dir"], job)) is not job:
            repeats.append((twin, job))
    if issues or repeats or words.issues:
        raise ConfigError(
            *words.issues,
            *(_add_location(message, of, len(overrides)) for message, of in issues.items()),
            *(_same_run(*pair) for pair in repeats[:1]),
        )
    _report_continued(jobs)
    return jobs


def _report_continued(jobs: Sequence[Job]) -> None:
    if continued := list(filter(None, (job.config.news for job in jobs))):
        print(
            f"{len(continued)} of {len(jobs)} jobs continue runs of an equivalent"
            f" configuration: {'; '.join(dict.fromkeys(continued))}."
        )


def _check_plugins(config: RunConfig, words: Command) -> None:
    for group in ("hydra/sweeper", "hydra/launcher"):
        choice = config.choices[group]
        if choice != words.choice(group):
            raise ConfigError(
                f"{group}={choice}: an option that is swept cannot choose it; type it."
            )


def _add_location(message: str, jobs: Sequence[Mistaken], count: int) -> str:
    """Return the message with the first job that it is about, unless it is about all."""
    index, overrides = jobs[0]
    if len(jobs) >= count or any(
        message.startswith(override.lstrip("+")) for override in overrides
    ):
        return message
    others = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{message.rstrip('.')} (job {index + 1}{others}: {' '.join(overrides)})."


def _same_run(first: Job, second: Job) -> str:
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


def run_jobs(jobs: Sequence[Job]) -> list[JobResult]:
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


def _run_jobs(jobs: Sequence[Job]) -> list[JobResult]:
    dispatch = construct(jobs[0].plain["dispatch"])
    if hasattr(dispatch, "sweep"):
        return list(dispatch.sweep(jobs))
    slots = min(len(jobs), dispatch.slots()) if hasattr(dispatch, "slots") else 1
    is_complete = getattr(dispatch, "is_complete", lambda config: False)
    return SweepQueue(jobs, slots, partial(_is_done, is_complete)).run()


def _is_done(is_complete: Callable[[RunConfig], object], job: Job) -> bool:
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
        or StoredRun.read(job.config.folder.path).recorded_state != "completed"
    ):
        return False
    try:
        return bool(is_complete(job.config))
    # The error is raised again when the job starts, and a dispatch of the user may raise any.
    except Exception:
        logger.debug("%s: is not known to be done", job.config.folder.path, exc_info=True)
        return False


def show_ranking(jobs: Sequence[Job]) -> None:
    """Print the runs that trained, best first, if one metric and direction judges them all."""
    folders = [job.config.folder.path for job in jobs if job.config.trains]
    stored = [StoredRun.read(folder) for folder in folders]
    # A job may have ended before its run began.
    runs = [run for run in stored if run.record]
    judged = {run.judged_by for run in runs if run.judged_by is not None}
    if len(runs) < 2 or len(judged) != 1 or any(run.state in ("queued", "running") for run in runs):
        return
    ((metric, mode),) = judged
    print(f"Ranked by {metric}:")
    # JSON has no infinity, so run.json has it as text.
    in_order = sort_best_first(runs, lambda run: number(run.best.get("value")), mode)
    table(in_order, time.time(), terminal_width()).print()


def conclude(jobs: Sequence[Job], results: Sequence[JobResult]) -> None:
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
            "\n".join([f"{len(failed)} of {plural(len(jobs), 'job')} failed:", *lines]),
            file=sys.stderr,
            flush=True,
        )
        raise SystemExit(1)
