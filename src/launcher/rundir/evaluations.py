"""The results of evaluations that ran beside training, and the steps at which they took effect.

```
evaluations/step-00000100.json   the metrics of the checkpoint of that step
evaluations/arrivals.json        {"100": 147}: training used them after step 147
```
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.rundir.files import parse_json, replace_file
from launcher.rundir.folder import RunFolder, step_name


class Evaluations:
    """The folder `evaluations` of a run.

    The evaluating process writes the results, and rank 0 of the training the arrivals.
    """

    def __init__(self, folder: RunFolder):
        self.path, self.checkpoints = folder.path / "evaluations", folder.checkpoints

    def has_checkpoint(self, step: int) -> bool:
        return (self.checkpoint(step) / "manifest.json").exists()

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / step_name(step)

    def result(self, step: int) -> dict[str, Any] | None:
        """Return the metrics of a step, or None if there are none.

        The result of a checkpoint that has been saved again since, after a rollback for instance,
        does not count.
        """
        with suppress(OSError, ValueError, KeyError, TypeError):
            saved = parse_json(self._file(step).read_bytes())
            if not self.has_checkpoint(step) or saved["manifest"] == self.manifest(step):
                metrics: dict[str, Any] = saved["metrics"]
                return metrics
        return None

    def write(self, step: int, manifest: str, metrics: dict[str, object]) -> None:
        """Write the metrics of a step.

        Args:
            step: of the checkpoint.
            manifest: digest of the checkpoint's manifest before it was read.
            metrics: nested by the names of the loaders.
        """
        self.path.mkdir(exist_ok=True)
        content = {"step": step, "manifest": manifest, "metrics": metrics}
        replace_file(self._file(step), json.dumps(content).encode())

    def forget(self, step: int) -> None:
        """Delete the result of an earlier checkpoint of this step."""
        self._file(step).unlink(missing_ok=True)

    def manifest(self, step: int) -> str:
        """Return a digest of a checkpoint's manifest, which has the checksum of each file."""
        return hashlib.sha256((self.checkpoint(step) / "manifest.json").read_bytes()).hexdigest()

    def arrivals(self) -> dict[int, int]:
        """Return the step at which the values of each step took effect."""
        with suppress(OSError, ValueError, AttributeError):
            saved = parse_json(self._arrivals.read_bytes())
            return {int(step): int(arrived) for step, arrived in saved.items()}
        return {}

    def note_arrivals(self, arrivals: dict[int, int]) -> None:
        self.path.mkdir(exist_ok=True)
        replace_file(self._arrivals, json.dumps(arrivals).encode())

    @property
    def _arrivals(self) -> Path:
        return self.path / "arrivals.json"

    def _file(self, step: int) -> Path:
        return self.path / f"{step_name(step)}.json"
