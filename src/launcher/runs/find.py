"""Runs on disk: which exist, and which one a word names."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from launcher.config.direction import direction
from launcher.config.messages import hint, nearest
from launcher.config.tree import leaves
from launcher.errors import ConfigError
from launcher.run.folder import RunFolder
from launcher.run.history import History, sampled, sparkline
from launcher.run.holder import is_held
from launcher.run.record import read_record
from launcher.runs.cache import ENDED, Overlay, RunCache, stamp
from launcher.runs.format import seconds_of
from launcher.runs.metrics import Value, newest_metrics
from launcher.slurm.scheduler import QueuedJob, queue
from launcher.slurm.submission import JOB_NOTE, JobNote

# The C parser reads the files of a thousand runs in a second or two, the Python one in twenty.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
CURVE_WIDTH = 10
CHOICES = re.compile(r"^    choices:\n(      .*\n)+(?=  ? ? ?\S)", re.MULTILINE)

RUN_HELP = "an id, the beginning of an id, a name, name/id, or a folder"


@dataclass
class StoredRun:
    """A run as its folder describes it. `record` is empty if run.json cannot be read."""

    folder: RunFolder
    record: dict[str, Any]
    job: QueuedJob | None = None
    """Its job in SLURM's queue, set by `join_queue`."""
    queue_known: bool = False
    """True once SLURM was asked: a run without a job then has none."""

    @classmethod
    def cached(cls, path: Path, cache: RunCache) -> "StoredRun":
        """As `read`, from the cache of an earlier listing if nothing has changed since."""
        entry = cache.get(path)
        if entry is None:
            seen = stamp(path)
            run = cls.read(path)
            if run.record.get("state") in ENDED:
                cache.add(path, run._entry(cache), seen)
            return run
        run = cls(RunFolder(path), entry["record"])
        run.__dict__ |= {
            "values": Overlay(cache.values, entry["values"]), "choices": Overlay(cache.choices, entry["choices"]),
            "overrides": entry["overrides"], "loss_curve": entry["curve"], "_newest": entry["metrics"],
            "note": None if entry["note"] is None else JobNote(**entry["note"]),
        }  # fmt: skip
        return run

    def _entry(self, cache: RunCache) -> dict[str, Any]:
        """What the cache keeps; from here on this run has its values in the same form."""
        cache.values, cache.choices = cache.values or self.values, cache.choices or self.choices
        values, choices = Overlay.of(cache.values, self.values), Overlay.of(cache.choices, self.choices)
        self.__dict__ |= {"values": values, "choices": choices}
        self.__dict__.pop("config")
        return {
            "record": self.record, "values": values.changed, "choices": choices.changed, "overrides": self.overrides,
            "curve": self.loss_curve, "note": self.note and asdict(self.note), "metrics": self._newest,
        }  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> "StoredRun":
        folder = RunFolder(path)
        try:
            return cls(folder, read_record(folder.record_path))
        except (OSError, ValueError):
            return cls(folder, {})

    @property
    def id(self) -> str:
        return str(self.record.get("id") or self.folder.path.name)

    @property
    def name(self) -> str:
        return str(self.record.get("name") or self.folder.path.parent.name)

    @property
    def label(self) -> str:
        return f"{self.name}/{self.id}"

    @cached_property
    def state(self) -> str:
        """The state in run.json, corrected by the run's lock and SLURM's queue.

        `stale`: run.json says running or queued, but no process holds the run and no job of it is in the queue.
        `damaged`: run.json cannot be read. A preempted run whose job is in the queue is still `preempted`.
        """
        if not self.record:
            return "damaged"
        state = str(self.record.get("state") or "new")
        if state == "running" and not is_held(self.folder):
            if self.job is None:
                return "stale"
            return "queued" if self.job.is_pending else "running"  # suspended, or it starts again
        if state == "queued" and self.job is None and (self.queue_known or self.note is None):
            return "stale"
        return state

    @cached_property
    def note(self) -> JobNote | None:
        """Its newest submission."""
        return JobNote.read(self.folder)

    @property
    def had_job(self) -> bool:
        return self.note is not None or self.last_job_id is not None

    @property
    def last_job_id(self) -> str | None:
        """The SLURM job of its newest attempt."""
        last = self.attempts[-1].get("slurm_job_id") if self.attempts else None
        return str(last) if last else None

    @property
    def job_id(self) -> str | None:
        """The run's newest SLURM job."""
        if self.job is not None:
            return self.job.id
        return (self.note.job_id if self.note is not None else None) or self.last_job_id

    @property
    def waits_for(self) -> str | None:
        """Why its job does not run yet, as SLURM names it: Resources, Priority, BeginTime."""
        return self.job.reason if self.job is not None and self.job.is_pending else None

    @property
    def node(self) -> str | None:
        """Where it runs, or ran last."""
        if self.job is not None and self.job.nodes:
            return self.job.nodes
        return self.attempts[-1].get("host") if self.attempts else None

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return list(self.record.get("attempts", []))

    @property
    def started(self) -> str:
        """When the first attempt started, as run.json has it; empty if there was none."""
        return str(self.attempts[0].get("started") or "") if self.attempts else ""

    @property
    def updated(self) -> float | None:
        """When its record was last written, in seconds since the epoch."""
        try:
            return self.folder.record_path.stat().st_mtime
        except OSError:
            return None

    @property
    def best(self) -> dict[str, Any]:
        """`metric`, `value` and `step` of the best checkpoint; empty if there is none."""
        best = self.record.get("best")
        return best if isinstance(best, dict) else {}

    @property
    def best_is_most(self) -> bool:
        """Whether more of its best metric is better, by the configuration or the metric's name."""
        mode = self.values.get("hooks.checkpointing.best_mode")
        return (mode if mode in ("min", "max") else direction(str(self.best.get("metric")))) == "max"

    @cached_property
    def metrics(self) -> dict[str, Value]:
        return {name: Value(value, step) for name, (value, step) in json.loads(self._newest).items()}

    @cached_property
    def _newest(self) -> str:
        """The newest metrics as JSON, which is smaller in memory and seldom needed."""
        return json.dumps(newest_metrics(self.folder.metrics_path))

    @cached_property
    def history(self) -> History:
        """All that it has logged; a long run's file takes a second to read."""
        starts = {attempt.get("number"): seconds_of(attempt.get("started")) for attempt in self.attempts}
        known = {number: seconds for number, seconds in starts.items() if number is not None and seconds is not None}
        return History.of(self.folder, known)

    @cached_property
    def loss_curve(self) -> str:
        """The training loss over the whole run as a row of bars."""
        return sparkline(sampled(self.folder.metrics_path, "train/loss", CURVE_WIDTH), CURVE_WIDTH)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration that the run saved; empty if it cannot be read."""
        config = self._yaml("config.yaml")
        return config if isinstance(config, dict) else {}

    @cached_property
    def values(self) -> Mapping[str, str]:
        """The configuration by dotted keys, values as typed on a command line: {"optimizer.lr": "0.001"}."""
        return {path: written(value) for path, value in leaves(self.config).items()}

    @cached_property
    def overrides(self) -> list[str]:
        """The overrides of the command line that started it."""
        overrides = self._yaml("overrides.yaml")
        return [str(item) for item in overrides] if isinstance(overrides, list) else []

    @property
    def not_identity(self) -> list[str]:
        """The keys that its configuration names as `run.not_identity`."""
        text = self.values.get("run.not_identity", "")
        return text[1:-1].split(",") if text.startswith("[") else []

    @cached_property
    def choices(self) -> Mapping[str, str]:
        """The option of each config group: {"model": "gpt", ...}."""
        node = self._choices_alone() or self._yaml("hydra.yaml")
        for key in ("hydra", "runtime", "choices"):
            node = node.get(key) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            return {}
        return {str(group): written(option) for group, option in node.items()}

    def _choices_alone(self) -> Any:
        """The part of hydra.yaml that has the choices, a tenth of the file, if it is written as our files are."""
        try:
            match = CHOICES.search((self.folder.hydra / "hydra.yaml").read_text())
            return yaml.load(f"hydra:\n  runtime:\n{match[0]}", Loader=LOADER) if match else None
        except (OSError, yaml.YAMLError, UnicodeDecodeError):
            return None

    @property
    def config_dir(self) -> str | None:
        """The folder that the command line named by --config-dir, if any."""
        sources: Any = self._yaml("hydra.yaml")
        for key in ("hydra", "runtime", "config_sources"):
            sources = sources.get(key) if isinstance(sources, dict) else None
        named = [source for source in sources or () if source.get("provider") == "command-line"]
        return str(named[0]["path"]) if named else None

    def _yaml(self, name: str) -> Any:
        try:
            return yaml.load((self.folder.hydra / name).read_bytes(), Loader=LOADER)
        except (OSError, yaml.YAMLError, UnicodeDecodeError):
            return None


def join_queue(runs: Iterable[StoredRun], jobs: Mapping[str, QueuedJob] | None) -> None:
    """Give each run its job in SLURM's queue (see `scheduler.queue`); None: the queue is not known."""
    if jobs is None:
        return
    for run in runs:
        run.queue_known = True
        run.job = jobs.get(run.last_job_id or "")
        if run.note is not None:
            run.job = run.note.find_in(jobs) or run.job
        run.__dict__.pop("state", None)


def ask_queue(runs: Iterable[StoredRun]) -> None:
    """One call of squeue for all runs; none where no run has a job that could be in the queue."""
    open_runs = [run for run in runs if run.record.get("state") != "completed" and run.had_job]
    if open_runs:
        join_queue(open_runs, queue(run.folder.path / JOB_NOTE for run in open_runs))


def written(value: Any) -> str:
    """A value as on a command line: `null`, `true`, `0.001`, `[a,b]`."""
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def find_runs(outputs: Path, cache: RunCache | None = None) -> list[StoredRun]:
    """All runs below a folder, in the order in which they started."""
    cache = RunCache(outputs) if cache is None else cache
    runs = [StoredRun.cached(path, cache) for path in run_folders(outputs)]
    cache.save()
    return sorted(runs, key=lambda run: (run.started, str(run.folder.path)))


def run_folders(outputs: Path) -> Iterator[Path]:
    """Folders with a run.json, except hidden ones. A run's own folder is not searched: it may have many files."""
    return map(Path, _run_folders(str(outputs)))


def _run_folders(folder: str) -> Iterator[str]:
    if os.path.lexists(f"{folder}/run.json"):
        yield folder
        return
    try:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if each.is_dir(follow_symlinks=False) and each.name[0] != "."]
    except OSError:
        return
    for name in sorted(names):
        yield from _run_folders(f"{folder}/{name}")


def find_run(word: str, outputs: Path) -> StoredRun:
    """The run that an id, the beginning of an id, a name, name/id, or a folder names.

    Raises:
        ConfigError: the word names no run, or several; the sentence lists the nearest.
    """
    folder = Path(word).expanduser()
    if (folder / "run.json").is_file():
        return StoredRun.read(folder)
    runs = find_runs(outputs)
    matches = (
        [run for run in runs if word in (run.id, run.label)]
        or [run for run in runs if run.name == word]
        or [run for run in runs if run.id.startswith(word)]
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        some = ", ".join(run.label for run in matches[:8])
        more = f" and {len(matches) - 8} more" if len(matches) > 8 else ""
        raise ConfigError(f"'{word}': names {len(matches)} runs, {some}{more}; give the id of one.")
    if not runs:
        raise ConfigError(f"'{word}': there are no runs in {outputs}; give their folder with --outputs=DIR.")
    names = {run.name for run in runs}
    near = nearest(word, {run.id for run in runs} | names | {run.label for run in runs})
    known = f" Its runs have the names {', '.join(sorted(names)[:8])}." if near is None else ""
    raise ConfigError(f"'{word}': is not a run in {outputs}{hint(word, [near] if near else [])}{known}")
