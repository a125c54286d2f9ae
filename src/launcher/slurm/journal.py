"""`restarts.json` of a run or study, in which rank 0 notes launches and requeues of each job."""

import json
import logging
from contextlib import suppress
from typing import Any

from launcher.process.files import parse_json, read_file, replace_file
from launcher.rundir.folder import RunFolder

RESTARTS = "restarts.json"

logger = logging.getLogger("launcher")


class Journal:
    """One job's entry.

    It is `{"starts": [{"restart", "step"}], "requeues": [{"cause", "step", "start", "trained"}]}`.
    `step` is the step of the newest checkpoint at the time, `start` is the index of the launch that
    was requeued, and `trained` is whether it had completed a step. Without a folder, nothing is
    kept.
    """

    def __init__(self, folder: RunFolder | None, job: str):
        self.path = None if folder is None else folder.path / RESTARTS
        self.data: dict[str, Any] = {}
        if self.path is not None:
            with suppress(OSError, ValueError):
                self.data = parse_json(read_file(self.path))
        self.job: dict[str, list[dict[str, object]]] = self.data.setdefault(
            job, {"starts": [], "requeues": []}
        )

    def start(self, restart: int, step: int) -> None:
        self.job["starts"].append({"restart": restart, "step": step})
        self._write()

    def requeue(self, cause: str, step: int, trained: bool = True) -> None:
        """Record that the newest start was requeued; a second call replaces the first."""
        start = len(self.job["starts"]) - 1
        self.job["requeues"] = [
            requeue for requeue in self.job["requeues"] if start < 0 or requeue["start"] != start
        ]
        self.job["requeues"].append(
            {"cause": cause, "step": step, "start": start, "trained": trained}
        )
        self._write()

    def count(self, cause: str) -> int:
        return sum(requeue["cause"] == cause for requeue in self.job["requeues"])

    def fruitless(self) -> int:
        """Count the latest restarts in a row without a newer checkpoint.

        A launch that SLURM ended before it had completed a step had no time to save, and does not
        count, unless it reached its time limit.
        """
        cut_short = {
            requeue["start"]
            for requeue in self.job["requeues"]
            if not requeue["trained"] and requeue["cause"] != "timed out"
        }
        steps = [
            start["step"]
            for index, start in enumerate(self.job["starts"])
            if index not in cut_short
        ]
        same = next((i for i, step in enumerate(reversed(steps)) if step != steps[-1]), len(steps))
        return max(0, same - 1)

    def _write(self) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(self.data, indent=1).encode() + b"\n")
        except OSError as error:
            logger.warning("%s could not be written: %s", self.path, error)
