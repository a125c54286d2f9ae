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
    return in_turn(folder, [(count, tasks)])[0]


def in_turn(folder: Path, phases: list[tuple[int, list[Task]]]) -> list[list[list[Any]]]:
    """Do as `together` with one number of ranks after the other, whose configurations are composed
    once."""
    words, overrides = ["-m", "support.drive"], []
    for number, (count, tasks) in enumerate(phases):
        (place := folder / f"phase-{number}").mkdir(parents=True)
        (place / "tasks.json").write_text(json.dumps(tasks))
        words += [str(place), str(count)]
        overrides += [each for _, arguments in tasks for each in arguments.get("overrides", [])]
    preloaded = python.preloaded(overrides)
    done = python.run(*words, env=ENVIRONMENT, timeout=LIMIT, preloaded=preloaded)
    if done.returncode != 0:
        raise AssertionError(f"{done.stdout}{done.stderr}")
    results = []
    for number, (count, _) in enumerate(phases):
        files = [folder / f"phase-{number}" / f"results-{rank}.json" for rank in range(count)]
        of_ranks = [json.loads(file.read_text()) for file in files]
        results.append([list(of_task) for of_task in zip(*of_ranks, strict=True)])
    return results


def task(name: str, folder: Path, *overrides: str, **more: Any) -> Task:
    return name, {"folder": str(folder), "overrides": [*overrides], **more}


def by_name(folder: Path, *phases: tuple[int, dict[Any, Task]]) -> list[dict[Any, list[Any]]]:
    """Do as `in_turn`; in each phase, each rank's result by the task's name."""
    done = in_turn(folder, [(count, list(tasks.values())) for count, tasks in phases])
    return [dict(zip(tasks, of, strict=True)) for (_, tasks), of in zip(phases, done, strict=True)]
