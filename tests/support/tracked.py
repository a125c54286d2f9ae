"""The files of a run, as training writes them."""

import json
from pathlib import Path
from typing import Any

from launcher.config.identity.record_entry import command_record
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.rundir.record import RunRecord
from launcher.trackers.base import TrackedRun, Tracker
from launcher.trackers.lines import MetricsReader


class WrittenRun:
    """A run's folder, with a process on it: this one.

    Args:
        tracker: the group `tracker` of its configuration.
    """

    def __init__(
        self, path: Path, tracker: Any = None, overrides: list[str] | None = None, **config: Any
    ):
        self.folder = RunFolder(path).create()
        content = {
            "run": {"name": path.parent.name, "id": path.name},
            "tracker": tracker or {},
            **config,
        }
        self.command = command_record(content, {"overrides": {"task": overrides or []}})
        self.lock = RunLock(self.folder)
        self.begin()

    def begin(self, start_step: int = 0, max_steps: int = 100) -> None:
        self.lock.acquire()
        self.record = RunRecord(self.folder)
        self.record.begin_attempt(
            start_step=start_step,
            max_steps=max_steps,
            world_size=1,
            strategy="none",
            command=self.command,
        )

    def log(self, *steps: int, **metrics: Any) -> None:
        """Append lines; without metrics, train/loss is 1 / (1 + step)."""
        with open(self.folder.metrics_path, "a") as file:
            for step in steps:
                line = {"step": step, "time": 1000.0 + step, "attempt": 1, "samples": step * 8}
                line |= metrics or {"train/loss": 1 / (1 + step)}
                file.write(json.dumps(line) + "\n")

    def log_media(self, step: int, **item: Any) -> None:
        with open(self.folder.path / "media.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "time": 1000.0 + step, **item}) + "\n")

    def end(self, outcome: Any = "completed", **details: Any) -> None:
        reason = details.pop("reason", "early" if outcome == "completed" else None)
        self.record.end_attempt(
            outcome, end_step=details.pop("step", 100), reason=reason, **details
        )
        self.lock.release()

    def tracked(self, tracker: Tracker) -> TrackedRun:
        """The run, bound to a tracker."""
        tracker.run = TrackedRun(self.folder)
        return tracker.run

    def opened(self, tracker: Tracker) -> int:
        """The last step that the tracker has."""
        self.tracked(tracker)
        return tracker.open()

    def mirror(self, tracker: Tracker, state: str = "completed", close: bool = True) -> None:
        """Send what is written; the newest line only of a run that is completed."""
        lines = MetricsReader(self.folder, self.opened(tracker))
        tracker.write(lines.read(final=state == "completed"))
        if close:
            tracker.close(state)
