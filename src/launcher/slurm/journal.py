"""`restarts.json` in a run's folder: for each SLURM job its starts and requeues. Rank 0 alone writes it."""

import json
import logging
from typing import Any

from launcher.run.files import replace_file
from launcher.run.folder import RunFolder

logger = logging.getLogger("launcher")


class Journal:
    """Of one job: `{"starts": [{"restart", "step"}], "requeues": [{"cause", "step"}]}`, step that of the newest
    checkpoint then."""

    def __init__(self, folder: RunFolder, job: str):
        self.path = folder.path / "restarts.json"
        try:
            self.data: dict[str, Any] = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            self.data = {}
        self.job: dict[str, list[dict[str, Any]]] = self.data.setdefault(job, {"starts": [], "requeues": []})

    def start(self, restart: int, step: int) -> None:
        self.job["starts"].append({"restart": restart, "step": step})
        self._write()

    def requeue(self, cause: str, step: int) -> None:
        self.job["requeues"].append({"cause": cause, "step": step})
        self._write()

    def count(self, cause: str) -> int:
        """Requeues for this cause."""
        return sum(one["cause"] == cause for one in self.job["requeues"])

    def fruitless(self) -> int:
        """Restarts in a row, up to now, that found no newer checkpoint than the start before them."""
        steps = [one["step"] for one in self.job["starts"]]
        same = next((i for i, step in enumerate(reversed(steps)) if step != steps[-1]), len(steps))
        return max(0, same - 1)

    def _write(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(self.data, indent=1).encode() + b"\n")
        except OSError as error:
            logger.warning("%s could not be written: %s", self.path, error)
