"""A sweep: its jobs, all checked before the first starts, then run one after the other.

The plugins in `hydra_plugins.launcher_dispatch` call this. How the jobs are run is the dispatch's to say:
one with a method `sweep(jobs, task) -> Sequence[JobReturn]` gets the whole list (an array of jobs on a
cluster); without one they run here, in turn.
"""

import sys
import traceback
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.types import HydraContext, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from launcher import signals
from launcher.errors import ConfigError, TrainingError
from launcher.identity import drift
from launcher.schema import validate

MOST_BASES = 64
"""So many compositions of groups are kept; each takes some 300 kB."""


@dataclass
class Composer:
    """Composes the jobs of a sweep. Jobs that differ in values alone share one composition of the groups,
    which takes 100 ms; setting the values of a copy takes 5."""

    loader: ConfigLoader
    master: DictConfig
    bases: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def compose(self, overrides: Sequence[str], index: int) -> DictConfig:
        """The configuration of one job, `hydra` node included.

        Raises:
            hydra.errors.HydraException: the overrides do not compose.
        """
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        values = [one for one in parsed if self._is_value(one)]
        rest = tuple(str(one.input_line) for one in parsed if one not in values)
        if self._is_base([one for one in parsed if one not in values], values):
            if rest not in self.bases:
                if len(self.bases) >= MOST_BASES:  # a sweep over what is added
                    self.bases.clear()
                self.bases[rest] = self.loader.load_sweep_config(self.master, list(rest))
            config = deepcopy(self.bases[rest])
            ConfigLoaderImpl._apply_overrides_to_config(values, config)
            _note_overrides(config, parsed)
        else:  # deletions, and additions that the values refer to, depend on their order
            config = self.loader.load_sweep_config(self.master, list(overrides))
        with open_dict(config):
            config.hydra.job.id = str(index)
            config.hydra.job.num = index
        _fix_name(config)
        return config

    def _is_base(self, rest: Sequence[Override], values: Sequence[Override]) -> bool:
        """Whether `rest` can be composed before the values are set: groups, and keys added elsewhere."""
        plain = (one for one in rest if one.package is None and not one.is_hydra_override())
        added = [one.key_or_group for one in plain if one.is_add()]
        if any(_overlap(one.key_or_group, key) for one in values for key in added):
            return False
        return all(self._is_group(one) or one.key_or_group in added for one in rest)

    def _is_value(self, override: Override) -> bool:
        plain = override.type == OverrideType.CHANGE and override.package is None
        return plain and not override.is_hydra_override() and not self._is_group(override)

    def _is_group(self, override: Override) -> bool:
        is_name = isinstance(override.value(), str | list)
        repository = self.loader.repository  # type: ignore[attr-defined]
        return override.type == OverrideType.CHANGE and is_name and repository.group_exists(override.key_or_group)


def _fix_name(config: DictConfig) -> None:
    """Put the run's name and id in place of their interpolations, each of which would hash the configuration anew.
    Where they cannot be had, validation says why."""
    try:
        name, identity = config.run.name, config.run.id
    except Exception:
        return
    with open_dict(config):
        config.run.name, config.run.id = name, identity


def _overlap(first: str, second: str) -> bool:
    """Whether one key is the other, or lies within it."""
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")


def _note_overrides(config: DictConfig, parsed: Sequence[Override]) -> None:
    """What Hydra notes of a job's overrides."""
    task = [one for one in parsed if not one.is_hydra_override()]
    rules = config.hydra.job.config.override_dirname
    counted = sorted(str(one.input_line) for one in task if one.key_or_group not in rules.exclude_keys)
    with open_dict(config):
        config.hydra.overrides.task = [one.input_line for one in task]
        config.hydra.job.override_dirname = rules.item_sep.join(counted).replace("=", rules.kv_sep)


@dataclass
class SweepJob:
    """One job of a sweep. Its configuration is composed when asked for: a thousand of them would fill the
    memory."""

    index: int
    overrides: list[str]
    composer: Composer
    run: str = ""
    """`<run.name>/<run.id>`"""
    common: frozenset[str] = frozenset()
    """Overrides that all jobs share; a label leaves them out."""
    dispatch: Any = None
    """The resolved `dispatch` node."""

    @property
    def config(self) -> DictConfig:
        return self.composer.compose(self.overrides, self.index)

    @property
    def label(self) -> str:
        shown = [one for one in self.overrides if one not in self.common and not one.startswith("hydra.")]
        return " ".join([f"[{self.index}]", self.run, *shown])


def expand(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of each job of a sweep: every combination of the values that each key is given.

    Raises:
        ConfigError: a sweep over an interval, which names no values.
    """
    values: dict[str, list[str]] = {}
    for one in overrides:
        key, text = one.get_key_element(), str(one.input_line)
        if not one.is_sweep_override():
            values[key] = [text]
        elif one.is_discrete_sweep():
            values[key] = [f"{key}={value}" for value in one.sweep_string_iterator()]
        else:
            raise ConfigError(f"{text}: names no values; e.g. {key}=0.1,0.2 or {key}=range(1,5).")
    return [list(job) for job in product(*values.values())]


def check_jobs(
    loader: ConfigLoader, master: DictConfig, overrides: Sequence[Sequence[str]], first_index: int = 0
) -> list[SweepJob]:
    """The jobs of a sweep, each one composed and validated.

    Raises:
        ConfigError: with the sentences of all jobs, or for two jobs that are the same run.
        hydra.errors.HydraException: some overrides do not compose.
    """
    composer = Composer(loader, master)
    common = frozenset.intersection(*map(frozenset, overrides)) if len(overrides) > 1 else frozenset[str]()
    jobs: list[SweepJob] = []
    faults: list[str] = []
    runs: dict[str, SweepJob] = {}
    for index, given in enumerate(overrides, first_index):
        job = SweepJob(index, list(given), composer, common=common)
        jobs.append(job)
        config = job.config
        try:
            validate(config)
        except ConfigError as error:
            faults += error.sentences
            continue
        job.run = f"{config.run.name}/{config.run.id}"
        job.dispatch = OmegaConf.to_container(config.dispatch, resolve=True)
        if (twin := runs.setdefault(config.run.dir, job)) is not job:
            faults.append(_same_run(twin, job))
    if faults:
        raise ConfigError(*dict.fromkeys(faults))
    return jobs


def _same_run(first: SweepJob, second: SweepJob) -> str:
    """The sentence that refuses two jobs of one identity, naming what differs and does not count."""
    before, after = (_plain(job.config) for job in (first, second))
    keys = [sentence.partition("=")[0].partition(":")[0] for sentence in drift(before, after)]
    same = f"jobs {first.index} and {second.index} of the sweep are the same run, {second.run}"
    if not keys:
        return f"{' '.join(second.overrides)}: {same}; leave one out, or give each its run.tag."
    return (
        f"{', '.join(keys)}: {same}, since run.not_identity has it that this does not count; sweep over what "
        "does, or give each job its run.tag."
    )


def _plain(config: DictConfig) -> dict[str, Any]:
    with open_dict(config):
        del config["hydra"]
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def run_jobs(jobs: Sequence[SweepJob], task: TaskFunction, context: HydraContext) -> Sequence[JobReturn]:
    """Run the jobs as the dispatch says. A failing job does not stop the others.

    Raises:
        ConfigError: the jobs do not agree on a dispatch.
        SystemExit: a signal came; the jobs that were to follow do not start.
    """
    if not jobs:
        return []
    if any(job.dispatch != jobs[0].dispatch for job in jobs):
        raise ConfigError("dispatch: all jobs of a sweep go one way; sweep over something else.")
    dispatch = instantiate(jobs[0].dispatch, _recursive_=False)
    if hasattr(dispatch, "sweep"):
        results: Sequence[JobReturn] = dispatch.sweep(jobs, task)
        return results
    return _run_in_turn(jobs, task, context)


def _run_in_turn(jobs: Sequence[SweepJob], task: TaskFunction, context: HydraContext) -> list[JobReturn]:
    results: list[JobReturn] = []
    for job in jobs:
        try:
            signals.check()
            result = _run(job, task, context)
        except SystemExit as stop:
            print(f"{job.label}: stopped, and {len(jobs) - len(results) - 1} more not started", flush=True)
            raise stop
        results.append(result)
        print(
            f"{job.label}: {'completed' if result.status == JobStatus.COMPLETED else reason(result)}",
            flush=True,
        )
    return results


def _run(job: SweepJob, task: TaskFunction, context: HydraContext) -> JobReturn:
    """One job through Hydra's own `run_job`; an exit that is not a signal's becomes its result."""
    try:
        result = run_job(
            task_function=task,
            config=job.config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=context,
        )
    except SystemExit as stop:
        if isinstance(stop, signals.Stop) or (isinstance(stop.code, int) and stop.code >= 128):
            raise
        result = JobReturn(overrides=job.overrides, cfg=job.config)
        result.status = JobStatus.FAILED if stop.code else JobStatus.COMPLETED
        result.return_value = stop if stop.code else None
    if result.status == JobStatus.FAILED and not isinstance(result._return_value, (SystemExit, TrainingError)):
        traceback.print_exception(result._return_value)
    return result


def reason(result: JobReturn) -> str:
    """Why a job failed, in a few words."""
    error = result._return_value
    if isinstance(error, SystemExit):
        return f"failed with exit code {error.code}"
    return f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def conclude(jobs: Sequence[SweepJob], results: Sequence[JobReturn]) -> None:
    """Leave with exit code 1 and a table of what failed, if anything did.

    Raises:
        SystemExit: some job failed.
    """
    failed = [(job, result) for job, result in zip(jobs, results, strict=False) if result.status == JobStatus.FAILED]
    if failed:
        width = max(len(job.label) for job, _ in failed)
        lines = [f"  {job.label:<{width}}  {reason(result)}" for job, result in failed]
        print("\n".join([f"{len(failed)} of {len(jobs)} jobs failed:", *lines]), file=sys.stderr, flush=True)
        raise SystemExit(1)
