"""A run as its folder describes it."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import yaml

from launcher.config import plain_yaml
from launcher.config.direction import Mode, direction
from launcher.run.folder import RunFolder
from launcher.run.history import History
from launcher.run.holder import is_held
from launcher.run.metrics import Value, curve_in, last_bytes, newest_in, newest_lines
from launcher.run.record_format import parse_record
from launcher.runs import saved
from launcher.runs.cache import ENDED, RunCache
from launcher.runs.format import seconds_of
from launcher.runs.logged import curve_and_lines
from launcher.runs.overlay import Base, Overlay, shared
from launcher.runs.run_files import RunFiles
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.submission import FROZEN, JobNote, frozen

NOT_IDENTITY = "run.not_identity"


@dataclass
class StoredRun:
    """A run as its folder describes it. `record` is empty if run.json cannot be read."""

    files: RunFiles
    record: dict[str, Any]
    job: QueuedJob | None = None
    """Its job in SLURM's queue, set by `join_queue`."""
    queue_known: bool = False
    """True once SLURM was asked: a run without a job then has none."""
    was_cancelled: bool = False
    """Whether SLURM says so of a job that did not record its end, set by `ask_queue`."""
    logged: dict[str, Any] | None = None
    """The summary of its metrics.jsonl in run.json."""

    @classmethod
    def cached(cls, path: str, cache: RunCache) -> "StoredRun":
        """As `read`, from the cache of an earlier listing if nothing has changed since."""
        files = RunFiles(path)
        entry = cache.get(files)
        if entry is None:
            run = cls.read(path)
            if run.record.get("state") in ENDED:
                cache.add(run.files, run._entry(cache))
            run.files.forget()
            return run
        files.forget()
        run = cls(files, entry["record"])
        run.__dict__ |= {
            "values": Overlay(cache.base.values, entry["values"]), "choices": Overlay(cache.choices, entry["choices"]),
            "overrides": entry["overrides"], "loss_curve": entry["curve"], "_newest": entry["metrics"],
            "note": None if entry["note"] is None else JobNote(**entry["note"]),
        }  # fmt: skip
        return run

    def _entry(self, cache: RunCache) -> dict[str, Any]:
        """What the cache keeps; from here on this run has its values in the same form."""
        if not cache.base.values:
            cache.base = Base(self.values)
        cache.choices = cache.choices or self.choices
        values, choices = self._values_over(cache.base), Overlay.of(cache.choices, self.choices)
        self.__dict__ |= {"values": values, "choices": choices}
        self.__dict__.pop("config", None)
        if (logged := curve_and_lines(self.files, self.logged)) is not None:
            self.__dict__ |= {"loss_curve": logged[0], "_newest": logged[1]}
        self.logged = None
        if self.files.look(FROZEN) is None:
            self.__dict__["note"] = None
        return {
            "record": self.record, "values": values.changed, "choices": choices.changed, "overrides": self.overrides,
            "curve": self.loss_curve, "note": self.note and asdict(self.note), "metrics": self._newest,
        }  # fmt: skip

    def _values_over(self, base: Base) -> Overlay:
        with suppress(yaml.YAMLError, TypeError, ValueError):
            return base.overlay(self._text("config.yaml") or "")
        return Overlay.of(base.values, self.values)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "StoredRun":
        files = RunFiles(os.fspath(path))
        try:
            record = parse_record(files.read("run.json"))
        except (OSError, ValueError):
            return cls(files, {})
        logged = record.pop("logged", None)
        return cls(files, shared(record), logged=logged)

    @cached_property
    def folder(self) -> RunFolder:
        return RunFolder(self.files.folder)

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
        if self.was_cancelled:
            return "cancelled"
        state = str(self.record.get("state") or "new")
        if state == "running" and not is_held(self.folder):
            if self.job is None:
                return "stale"
            return "queued" if self.job.is_pending else "running"  # suspended, or it starts again
        if state == "queued" and self.job is None and (self.queue_known or self.note is None):
            return "stale"
        return state

    @property
    def is_left(self) -> bool:
        """Whether no process is on the run: one that has recorded its end still logs its results."""
        return not is_held(self.folder)

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
    def open_job_id(self) -> str | None:
        """The SLURM job that run.json waits for: the submitted one, or that of the newest attempt."""
        if self._is_queued:
            return self.note.job_id if self.note is not None else None
        return self.last_job_id

    @property
    def job_id(self) -> str | None:
        """The run's newest SLURM job."""
        if self.job is not None:
            return self.job.id
        return (self.note.job_id if self.note is not None else None) or self.last_job_id

    @property
    def waits_for(self) -> str | None:
        """Why its job does not run yet, as SLURM names it: Resources, Priority, BeginTime."""
        if self.job is None:
            return None
        if self.job.state == "COMPLETING":
            return "completing"
        return self.job.reason if self.job.is_pending and self.job.reason != "None" else None

    @property
    def node(self) -> str | None:
        """Where it runs, or ran last."""
        if self.job is not None and self.job.nodes:
            return self.job.nodes
        return self.attempts[-1].get("host") if self.attempts else None

    @property
    def attempts(self) -> list[dict[str, Any]]:
        attempts: list[dict[str, Any]] = self.record.get("attempts", [])
        return attempts

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
    def judged_by(self) -> tuple[str, Mode] | None:
        """The metric of its best checkpoint, and its direction by the configuration or else by its name."""
        if not self.best:
            return None
        metric, mode = str(self.best.get("metric")), self.values.get("hooks.checkpointing.best_mode")
        is_most = (mode if mode in ("min", "max") else direction(metric)) == "max"
        return metric, "max" if is_most else "min"

    @cached_property
    def metrics(self) -> dict[str, Value]:
        return newest_in(self._newest)

    @cached_property
    def _newest(self) -> str:
        """The lines with the newest metrics: smaller in memory than their values, which are seldom needed."""
        return newest_lines(last_bytes(self.folder.metrics_path))

    @cached_property
    def history(self) -> History:
        """All that it has logged; a long run's file takes a second to read."""
        starts = {attempt.get("number"): seconds_of(attempt.get("started")) for attempt in self.attempts}
        known = {number: seconds for number, seconds in starts.items() if number is not None and seconds is not None}
        return History.of(self.folder, known)

    @cached_property
    def loss_curve(self) -> str:
        """The training loss over the whole run as a row of bars."""
        return curve_in(self.folder.metrics_path)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration that the run saved; empty if it cannot be read."""
        config = self._yaml("config.yaml")
        return config if isinstance(config, dict) else {}

    @cached_property
    def values(self) -> Mapping[str, str]:
        """The configuration by dotted keys, values as typed on a command line: {"optimizer.lr": "0.001"}."""
        text = self._text("config.yaml")
        try:
            return saved.flat(self.config) if text is None else saved.values(text)
        except yaml.YAMLError:
            return {}

    @cached_property
    def overrides(self) -> list[str]:
        """The overrides of the command line that started it."""
        return self.saved_overrides or []

    @property
    def saved_overrides(self) -> list[str] | None:
        """The same; None: they were not saved, or cannot be read."""
        text = self._text("overrides.yaml")
        if (words := saved.items(text or "")) is not None:
            return words
        overrides = self._yaml("overrides.yaml")
        return [str(item) for item in overrides] if isinstance(overrides, list) else None

    @property
    def not_identity(self) -> list[str]:
        """The keys that its configuration names as `run.not_identity`."""
        text = self.values.get(NOT_IDENTITY, "")
        return text[1:-1].split(",") if text.startswith("[") else []

    @cached_property
    def choices(self) -> Mapping[str, str]:
        """The option of each config group: {"model": "gpt", ...}."""
        if (chosen := saved.choices(self._text("hydra.yaml") or "")) is not None:
            return chosen
        node = self._yaml("hydra.yaml")
        for key in ("hydra", "runtime", "choices"):
            node = node.get(key) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            return {}
        return {str(group): saved.written(option) for group, option in node.items()}

    def _text(self, name: str) -> str | None:
        """A file of `.hydra/`; None: it cannot be read, or is not this attempt's."""
        try:
            return None if self._is_queued else self.files.read(f".hydra/{name}").decode()
        except (OSError, UnicodeDecodeError):
            return None

    @property
    def config_dir(self) -> str | None:
        """The folder that the command line named by --config-dir, if any."""
        sources: Any = self._yaml("hydra.yaml")
        for key in ("hydra", "runtime", "config_sources"):
            sources = sources.get(key) if isinstance(sources, dict) else None
        named = [source for source in sources or () if source.get("provider") == "command-line"]
        return str(named[0]["path"]) if named else None

    @property
    def _is_queued(self) -> bool:
        return self.record.get("state") == "queued"

    def _yaml(self, name: str) -> Any:
        """A file of `.hydra/`, which a run writes when it starts; until then, what was submitted."""
        if self._is_queued and name in self._submitted:
            return self._submitted[name]
        try:
            return plain_yaml.load(self.files.read(f".hydra/{name}"))
        except (OSError, yaml.YAMLError, UnicodeDecodeError):
            return self._submitted.get(name)

    @property
    def _submitted(self) -> dict[str, Any]:
        try:
            config, hydra = frozen(self.folder)
        except (OSError, ValueError, LookupError, TypeError):
            return {}
        own = {} if hydra is None else {"overrides.yaml": hydra["overrides"]["task"], "hydra.yaml": {"hydra": hydra}}
        return {"config.yaml": config, **own}
