"""Several ranks for a test, and the results of each of them."""

import json
from pathlib import Path
from typing import Any

from support import python
from support.runner import ENVIRONMENT

Task = tuple[str, dict[str, Any]]

LIMIT = 560.0
"""Seconds."""


def together(count: int, folder: Path, tasks: list[Task]) -> list[list[Any]]:
    """Do the tasks (functions of `drive` and their arguments) on `count` ranks; for each task, each
    rank's result."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tasks.json").write_text(json.dumps(tasks))
    overrides = [override for _, arguments in tasks for override in arguments.get("overrides", [])]
    preloaded = python.preloaded(overrides)
    words = "-m", "support.drive", str(folder), str(count)
    done = python.run(*words, env=ENVIRONMENT, timeout=LIMIT, preloaded=preloaded)
    if done.returncode != 0:
        raise AssertionError(f"{done.stdout}{done.stderr}")
    results = [
        json.loads((folder / f"results-{number}.json").read_text()) for number in range(count)
    ]
    return [list(of_task) for of_task in zip(*results, strict=True)]


def task(name: str, folder: Path, *overrides: str, **more: Any) -> Task:
    return name, {"folder": str(folder), "overrides": [*overrides], **more}


def by_name(count: int, folder: Path, tasks: dict[Any, Task]) -> dict[Any, list[Any]]:
    """Do tasks as `together` does; each rank's result by the task's name."""
    return dict(zip(tasks, together(count, folder, list(tasks.values())), strict=True))
