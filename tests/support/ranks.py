"""Several ranks for a test, and what each of them found."""

import json
import sys
from pathlib import Path
from typing import Any

from launcher.dispatch.spawner import Spawner

Task = tuple[str, dict[str, Any]]


def together(count: int, folder: Path, tasks: list[Task]) -> list[list[Any]]:
    """Do the tasks (functions of `drive` and their arguments) on `count` ranks; for each task, each rank's result."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tasks.json").write_text(json.dumps(tasks))
    spawner = Spawner([sys.executable, "-m", "support.drive"], count, folder)
    ranks = spawner.run()
    if (failed := spawner.cause()) is not None:
        raise AssertionError(f"rank {failed.number}, code {failed.process.returncode}: {failed.told.get('text')}")
    results = [json.loads((folder / f"results-{rank.number}.json").read_text()) for rank in ranks]
    return [list(of_task) for of_task in zip(*results, strict=True)]
