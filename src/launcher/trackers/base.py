"""Interface of a tracker, and the run that it mirrors."""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from uuid import uuid4

from launcher.checkpoint.find_checkpoint import checkpoint_path
from launcher.checkpoint.store import LATEST
from launcher.config.construct import instantiate, target_object
from launcher.config.tree import Tree, get, nest, without
from launcher.errors import ConfigError
from launcher.process.files import read_file, replace_file
from launcher.rundir.folder import RunFolder
from launcher.rundir.record_format import AttemptData, RecordData
from launcher.rundir.run_on_disk import RunOnDisk

Line = dict[str, Any]
"""A line of metrics.jsonl. `media` has the lines of media.jsonl with the same step, if there are
any."""
logger = logging.getLogger("launcher.trackers")
Stored = dict[str, Any]
"""Data that a tracker keeps in the run's folder."""
NO_METRICS = ("step", "time", "attempt", "samples", "epoch", "media")
NOT_ENDED = ("running", "queued", "paused")
NOT_SWEPT = ("run", "paths", "tracker", "dispatch", "hydra", "device", "job")


class TrackedRun:
    """View of a run for trackers: its files, never the training process."""

    def __init__(self, folder: RunFolder, config: Tree | None = None):
        self.folder = folder
        if config is not None:
            self.config = config

    @cached_property
    def config(self) -> Tree:
        return nest(self.record.get("config", {}))

    @property
    def name(self) -> str:
        return str(get(self.config, "run.name") or self.folder.path.absolute().parent.name)

    @property
    def id(self) -> str:
        return self.folder.path.absolute().name

    @property
    def label(self) -> str:
        return f"{self.name}/{self.id}"

    @property
    def sweep(self) -> str | None:
        """Name that the runs of one sweep share, or None outside a sweep."""
        sweep = get(self.config, "run.sweep")
        return str(sweep) if sweep else None

    @property
    def record(self) -> RecordData:
        """The current run.json, which is empty if it cannot be read."""
        return RunOnDisk.read(self.folder).record

    @property
    def attempt(self) -> AttemptData:
        """The newest attempt."""
        return RunOnDisk.read(self.folder).attempt

    @property
    def swept(self) -> dict[str, Any]:
        """The hyperparameters that the command line set: {"optimizer.lr": 0.01, "model": "mlp"}."""
        values = {}
        for override in self.record.get("overrides") or ():
            key, _, text = override.lstrip("+").partition("=")
            if not key.startswith("~") and key.partition(".")[0] not in NOT_SWEPT:
                value = get(self.config, key)
                values[key] = text if isinstance(value, Mapping) else value
        return values

    def stored(self, tracker: str) -> Stored:
        """Return the data that a tracker keeps in the run's folder.

        It always has an `id`, which on a server distinguishes this folder's run from the run of a
        deleted folder, or of a folder on another machine.
        """
        data = self._read(tracker)
        if "id" in data:
            return data
        return self.store(tracker, id=f"{self.id}-{uuid4().hex[:8]}")

    def store(self, tracker: str, **values: object) -> Stored:
        """Change values of these data, and return all."""
        path = self._data_path(tracker)
        data = self._read(tracker) | values
        path.parent.mkdir(exist_ok=True)
        replace_file(path, json.dumps(data).encode())
        return data

    def _read(self, tracker: str) -> Stored:
        try:
            data = json.loads(read_file(self._data_path(tracker)))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def _data_path(self, tracker: str) -> Path:
        return self.folder.path / ".trackers" / f"{tracker}.json"


@dataclass
class Names:
    """Names that a service accepts, in place of a run's own. Two names never become one.

    Args:
        clean: function that returns an accepted name, with room for a number.
        names: the service's name by the run's; names are added to it.
    """

    clean: Callable[[str], str]
    names: dict[str, str]

    def __call__(self, name: str) -> str:
        if name not in self.names:
            first = self.clean(name)
            taken = set(self.names.values())
            candidates = chain([first], (f"{first}_{number}" for number in count(2)))
            self.names[name] = next(text for text in candidates if text not in taken)
        return self.names[name]


class Tracker(ABC):
    """Mirrors a run's metrics.jsonl in one place.

    It works in the follower's process, where there is no torch. A constructor only stores its
    options, since the training process calls it too, to check them.

    Examples:
        >>> class PrintTracker(Tracker):
        ...     def open(self):
        ...         self.address = "here"
        ...         return -1
        ...
        ...     def write(self, lines):
        ...         for line in lines:
        ...             print(line.step, line.values)
        ...
        ...     def close(self, state):
        ...         pass
        >>> PrintTracker().check("tracker.print")
    """

    provides: ClassVar[tuple[str, ...]] = ()

    library: ClassVar[str] = ""
    """The module that the tracker needs."""
    extra: ClassVar[str] = ""
    """The extra of torch-launcher that installs the library."""
    waits_for_sync: bool = False
    """True if the tracker does nothing until `launcher.runs sync`."""
    artifacts: Sequence[str] = ()
    """Files that it sends when the run is complete: best, last, export."""
    not_sent: Mapping[str, str] = MappingProxyType({})
    """Names that the service rejects, with the reason. The rest is sent."""
    run: TrackedRun
    """Set before `open`."""
    address: str = ""
    """Address of the run, set by `open`. It is logged once."""

    def check(self, key: str, to_sync: bool = False) -> None:
        """Check, before training starts, that the tracker can work here.

        Args:
            key: its key in the configuration, such as tracker.wandb.
            to_sync: the check is for `launcher.runs sync`.
        Raises:
            ConfigError: a library or a key is missing.
        """
        if self.library:
            self.require(key, self.library)

    def require(self, key: str, library: str) -> None:
        """Check that the library is installed."""
        spec = find_spec(library)
        # A folder of that name, like wandb's own, has no origin.
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"{key}: {library} is not installed; install it with pip install"
                f" 'torch-launcher[{self.extra}]'."
            )

    def find_artifacts(self) -> dict[str, Path]:
        """Return the folders of the artifacts that were not sent, by best, last and export."""
        sent = self._sent_artifacts()
        artifacts = {}
        folder = self.run.folder
        for which in self.artifacts:
            path: Path | None = folder.export
            if which != "export":
                path = checkpoint_path(folder.checkpoints, LATEST if which == "last" else which)
            if path is None or not path.is_dir():
                logger.warning("The run has no %s to send as an artifact.", which)
            elif path.resolve().name != sent.get(which):
                artifacts[which] = path.resolve()
        return artifacts

    def note_artifacts(self, artifacts: Mapping[str, Path]) -> None:
        """Note that these artifacts have arrived."""
        names = {which: path.name for which, path in artifacts.items()}
        self.run.store(self.library, artifacts=self._sent_artifacts() | names)

    def _sent_artifacts(self) -> dict[str, str]:
        sent: dict[str, str] = self.run.stored(self.library).get("artifacts", {})
        return sent

    def sent_config(self) -> Tree:
        """Return the run's configuration, apart from its trackers."""
        return without(self.run.config, "tracker")

    @abstractmethod
    def open(self) -> int:
        """Connect, also again after any method has failed; return the last step it has, or -1."""

    @abstractmethod
    def write(self, lines: list[Line]) -> None:
        """Add lines, in the order of their steps, all later than the lines that the tracker has."""

    @abstractmethod
    def close(self, state: str) -> None:
        """End the mirror of the run, which is in this state.

        It is completed, preempted, cancelled, failed, killed, paused or queued, or running if the
        run continues without us.
        """


def numbers(line: Line) -> dict[str, float]:
    return {key: float(value) for key, value in line.items() if key not in NO_METRICS}


def is_tracker(node: Any) -> bool:
    """Return whether a node of the group `tracker` is for the follower, which a hook is not."""
    target = target_object(node["_target_"]) if node is not None else None
    return isinstance(target, type) and issubclass(target, Tracker)


def build_trackers(nodes: Any, names: Iterable[str] | None = None) -> dict[str, Tracker]:
    """Build the trackers of the group `tracker`: those with these names, or all."""
    return {
        name: instantiate(node, f"tracker.{name}")
        for name, node in (nodes or {}).items()
        if (names is None or name in names) and is_tracker(node)
    }
