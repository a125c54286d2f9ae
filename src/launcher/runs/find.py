"""Runs on disk: which there are, and which one is meant."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from launcher.config.messages import hint, nearest
from launcher.errors import ConfigError
from launcher.run.folder import RunFolder
from launcher.run.lock import is_held
from launcher.run.record import read_record
from launcher.slurm.scheduler import QueuedJob, queue
from launcher.slurm.submission import ticket

# The C parser reads the files of a thousand runs in a second or two, the Python one in twenty.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Run:
    """A run as its folder tells of it. `record` is empty if run.json cannot be read."""

    folder: RunFolder
    record: dict[str, Any]
    job: QueuedJob | None = None
    """Its job in SLURM's queue, where `join_queue` found one."""
    queue_known: bool = False
    """SLURM has been asked, so that a run without a job has none."""

    @classmethod
    def read(cls, path: Path) -> "Run":
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

    @cached_property
    def state(self) -> str:
        """What run.json says, and the processes and SLURM's queue bear out.

        `stale` is a run that says running or queued while nothing is there that would go on with it; `damaged` one
        without a readable record. A preempted run whose job waits in the queue is still `preempted`.
        """
        if not self.record:
            return "damaged"
        state = str(self.record.get("state") or "new")
        if state == "running" and not is_held(self.folder):
            return "queued" if self.job is not None and self.job.is_pending else "stale"
        if state == "queued" and self.job is None and self.queue_known:
            return "stale"
        return state

    @property
    def job_id(self) -> str | None:
        """The newest SLURM job that had to do with it."""
        last = self.attempts[-1].get("slurm_job_id") if self.attempts else None
        found = ticket(self.folder).get("job_id")
        return str(found or last) if found or last else None

    @property
    def waits_for(self) -> str | None:
        """Why its job does not run yet, in SLURM's word (Resources, Priority, BeginTime)."""
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
    def updated(self) -> float | None:
        """When its record was last written, in seconds since the epoch."""
        try:
            return self.folder.record_path.stat().st_mtime
        except OSError:
            return None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration as the run saved it; empty if there is none to read."""
        found = self._yaml("config.yaml")
        return found if isinstance(found, dict) else {}

    @cached_property
    def values(self) -> dict[str, str]:
        """The configuration by dotted keys, values as one would type them: {"optimizer.lr": "0.001"}."""
        return dict(flatten(self.config))

    @cached_property
    def overrides(self) -> list[str]:
        """What was given on the command line."""
        found = self._yaml("overrides.yaml")
        return [str(item) for item in found] if isinstance(found, list) else []

    @cached_property
    def choices(self) -> dict[str, str]:
        """The option of each config group: {"model": "gpt", ...}."""
        found: Any = self._yaml("hydra.yaml")
        for key in ("hydra", "runtime", "choices"):
            found = found.get(key) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            return {}
        return {str(group): written(option) for group, option in found.items()}

    def _yaml(self, name: str) -> Any:
        try:
            return yaml.load((self.folder.hydra / name).read_bytes(), Loader=LOADER)
        except (OSError, yaml.YAMLError, UnicodeDecodeError):
            return None


def join_queue(runs: Iterable[Run], jobs: Mapping[str, QueuedJob] | None) -> None:
    """Tell each run its job in SLURM's queue (see `scheduler.queue`); nothing where that is None."""
    for run in runs if jobs is not None else ():
        run.queue_known = True
        run.job = (jobs or {}).get(run.job_id or "")
        run.__dict__.pop("state", None)


def ask_queue(runs: Iterable[Run]) -> None:
    """One call of squeue for all runs; none where no run has a job that could be in the queue."""
    open_runs = [run for run in runs if run.record.get("state") != "completed" and run.job_id]
    if open_runs:
        join_queue(open_runs, queue())


def flatten(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and values as text: `optimizer.lr`, `0.001`."""
    for key, value in tree.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from flatten(value, here)
        else:
            yield here, written(value)


def written(value: Any) -> str:
    """A value as on a command line: `null`, `true`, `0.001`, `[a,b]`."""
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def find_runs(outputs: Path) -> list[Run]:
    """All runs below a folder, the one that began first at the top."""
    runs = [Run.read(path) for path in run_folders(outputs)]
    return sorted(runs, key=lambda run: (began(run), str(run.folder.path)))


def began(run: Run) -> str:
    """When the first attempt started, as run.json has it; empty if there was none."""
    return str(run.attempts[0].get("started") or "") if run.attempts else ""


def run_folders(outputs: Path) -> Iterator[Path]:
    """Folders that hold a run.json. A run is not searched further: it may have many files."""
    for folder, names, files in os.walk(outputs):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if "run.json" in files:
            names.clear()
            yield Path(folder)


def find_run(wanted: str, outputs: Path) -> Run:
    """The run that is meant by an id, the beginning of one, a name, name/id, or a folder.

    Raises:
        ConfigError: none or several are meant; it names the nearest.
    """
    given = Path(wanted).expanduser()
    if (given / "run.json").is_file():
        return Run.read(given)
    runs = find_runs(outputs)
    matches = [run for run in runs if wanted in (run.id, f"{run.name}/{run.id}")]
    matches = matches or [run for run in runs if run.name == wanted]
    matches = matches or [run for run in runs if run.id.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        some = ", ".join(f"{run.name}/{run.id}" for run in matches[:8])
        more = f" and {len(matches) - 8} more" if len(matches) > 8 else ""
        raise ConfigError(f"'{wanted}': {len(matches)} runs are meant by it, {some}{more}; give one's id.")
    if not runs:
        raise ConfigError(f"'{wanted}': there are no runs in {outputs}; say where they lie with --outputs=DIR.")
    names = {run.name for run in runs}
    near = nearest(wanted, {run.id for run in runs} | names | {f"{run.name}/{run.id}" for run in runs})
    known = f" Names there: {', '.join(sorted(names)[:8])}." if near is None else ""
    raise ConfigError(f"'{wanted}': is no run in {outputs}{hint(wanted, [near] if near else [])}{known}")
