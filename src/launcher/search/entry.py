"""`hydra/sweeper=optuna`, which makes a search of a command."""

import hashlib
import json
from contextlib import suppress
from functools import partial

from omegaconf import DictConfig
from optuna.distributions import FloatDistribution

from launcher.cli.sweep import check_jobs
from launcher.cli.sweep_queue import say
from launcher.config.compose.composer import Command
from launcher.config.compose.overrides import is_setting
from launcher.config.compose.resolve import resolve_part
from launcher.config.compose.session import loader
from launcher.config.construct import construct
from launcher.config.schema.declared import declared
from launcher.config.tree import Node, get
from launcher.dispatch.jobs import Job
from launcher.errors import ConfigError
from launcher.process.files import expand, remove_empty
from launcher.process.plural import plural
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.runs.trials import STUDIES, as_json
from launcher.search.local_runner import LocalRunner
from launcher.search.results import conclude
from launcher.search.rungs import rungs_of
from launcher.search.samplers import make_sampler
from launcher.search.search import Search
from launcher.search.search_space import Space, bare, overrides_of, point, read_space
from launcher.search.slurm_runner import SlurmRunner
from launcher.search.study_settings import JOBS, Settings, settings_of
from launcher.slurm.causes import Budget
from launcher.slurm.journal import RESTARTS
from launcher.slurm.requeue import run_guarded

SHARES = 0.0, 1.0, 0.5
"""Points of the space (as shares of each range) that are tried for a valid configuration."""
PROCESSES = "processes"
"""The declaration of a dispatch that trains the trials of a search as processes."""


def sweep(words: Command, master: DictConfig) -> None:
    """Search until the study has all its trials.

    Raises:
        signals.SignalExit: a signal came, and the trials have saved.
        SystemExit: no trial has completed.
    """
    ranges, arguments = resolve_part(master, "hpo.space") or {}, words.user_overrides
    space, fixed = read_space(loader(), arguments, ranges)
    fixed_settings = [text for text in arguments if is_setting(text)]
    probe = probe_job(words, [*fixed, *fixed_settings], space)
    dispatch = probe.plain["dispatch"]
    are_jobs = _trains_jobs(dispatch)
    if are_jobs and dispatch["dry_run"]:
        construct(dispatch).sweep([probe])
        return
    settings = check_settings(probe)
    if are_jobs:
        construct(dispatch).check()
    search = make_search(words, probe, settings, space, fixed, are_jobs)
    work = partial(_conduct, search)
    folder = StudyFolder(search.folder)
    try:
        with RunLock(folder):
            try:
                run_guarded(work, folder, Budget(max_fruitless_restarts=None))
            finally:
                if not search.trials:
                    (folder.path / RESTARTS).unlink(missing_ok=True)
    finally:
        remove_empty(folder.path, folder.path.parent, folder.path.parent.parent)


def _conduct(search: Search) -> None:
    """Run a study from its beginning, or from where it was left, to its results."""
    search.load()
    progress = f", {plural(len(search.trials), 'trial')} so far" if search.trials else ""
    rungs = f", rungs at steps {search.rungs}" if search.rungs else ""
    print(f"Study {search.folder}{progress}{rungs}", flush=True)
    try:
        search.run()
    except ConfigError:
        search.forget_unless_begun()
        raise
    conclude(search)


def _trains_jobs(dispatch: Node) -> bool:
    """Return whether a dispatch trains the trials as jobs, not as processes."""
    trials = declared(dispatch["_target_"], "trials")
    if trials not in (PROCESSES, JOBS):
        name = dispatch["_target_"].rpartition(".")[2]
        raise ConfigError(
            f"hydra/sweeper=optuna: {name} is not supported; use dispatch=local or dispatch=slurm."
        )
    return bool(trials == JOBS)


def check_settings(probe: Job) -> Settings:
    """Check the settings of a search."""
    if not probe.config.trains:
        raise ConfigError(
            "hydra/sweeper=optuna: trials train; use job=train, or remove hydra/sweeper."
        )
    for key, default in (("run.resume", "auto"), ("trainer.pause_at", None)):
        if (value := get(probe.plain, key)) != default:
            raise ConfigError(f"{key}={value}: a search decides it for each trial; leave it out.")
    settings = settings_of(probe.plain)
    make_sampler(settings)
    return settings


def make_search(
    words: Command,
    probe: Job,
    settings: Settings,
    space: Space,
    fixed: list[str],
    are_jobs: bool,
) -> Search:
    """Make the search of a command."""
    rungs = rungs_of(settings, probe.plain)
    name = f"{settings.name or probe.plain['run']['name']}-{study_id(probe, space, settings)}"
    words.sweep = name
    outputs = expand(probe.plain["paths"]["outputs"])
    folder = outputs / STUDIES / name

    def compose(overrides: list[str], number: int) -> Job:
        return Job(words.job(overrides, number), number, overrides)

    runner = SlurmRunner(outputs, name, say) if are_jobs else LocalRunner(folder, settings.parallel)
    return Search(folder, outputs, settings, space, fixed, compose, runner, rungs, say)


def probe_job(words: Command, fixed: list[str], space: Space) -> Job:
    """Return a job with a value from each range, which shows the common part of all trials.

    Raises:
        ConfigError: none is valid, or another value of a key is the same run.
    """
    issues: list[ConfigError] = []
    for share in SHARES:
        values, same = point(space, share), []
        try:
            (job,) = check_jobs(words, [[*fixed, *overrides_of(values)]])
        except ConfigError as error:
            issues.append(error)
            continue
        for key, value in point(space, 1.0 - share).items():
            with suppress(ConfigError):
                other = words.job([*fixed, *overrides_of(values | {key: value})], 0)
                if value != values[key] and other.name == job.run:
                    same.append(bare(key))
        if same:
            raise ConfigError(
                f"{', '.join(same)}: trials with other values are the same run, {job.run}; search"
                " over keys that count (see docs/naming.md), without run.id."
            )
        return job
    raise ConfigError(*(_with_range(message, space) for message in issues[-1].messages))


def _with_range(message: str, space: Space) -> str:
    """Return a message about a value of a range, which nobody has typed, with the range."""
    key, _, text = message.partition("=")
    span = {bare(name): among for name, among in space.items()}.get(key)
    if not isinstance(span, FloatDistribution):
        return message
    ends = f"interval({span.low:g},{span.high:g})"
    if "a whole number" in text:
        return f"{key}={ends}: should have whole numbers; use {key}=int({ends})."
    return f"{key}={ends}: with {message}"


def study_id(probe: Job, space: Space, settings: Settings) -> str:
    """Return 8 hex digits of the shared overrides, the space and the objective."""
    what = [
        probe.plain["run"]["id"],
        as_json(dict(sorted(space.items()))),
        settings.objective,
        settings.direction,
    ]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]


class StudyFolder(RunFolder):
    """The folder of a study, on which one search works at a time."""

    key, another = "hpo.name", "search under another name"
