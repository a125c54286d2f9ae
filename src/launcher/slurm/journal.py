"""`restarts.json` in a run's folder: the starts and requeues of each SLURM job. Only rank 0 writes it."""

import json
import logging
from typing import Any

from launcher.run.files import replace_file
from launcher.run.folder import RunFolder

logger = logging.getLogger("launcher")


class Journal:
    """One job's entry: `{"starts": [{"restart", "step"}], "requeues": [{"cause", "step"}]}`. `step` is that of the
    newest checkpoint at the time."""

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
        return sum(requeue["cause"] == cause for requeue in self.job["requeues"])

    def fruitless(self) -> int:
        """The latest restarts in a row that had no newer checkpoint than the start before them."""
        steps = [start["step"] for start in self.job["starts"]]
        same = next((i for i, step in enumerate(reversed(steps)) if step != steps[-1]), len(steps))
        return max(0, same - 1)

    def _write(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(self.data, indent=1).encode() + b"\n")
        except OSError as error:
            logger.warning("%s could not be written: %s", self.path, error)
