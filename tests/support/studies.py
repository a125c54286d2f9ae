"""Studies on disk: the files that a search leaves, and runs with a value of each objective."""

import json
from pathlib import Path

from optuna.distributions import CategoricalDistribution, FloatDistribution

from launcher.rundir.folder import RunFolder
from launcher.rundir.record_format import FORMAT_VERSION
from launcher.runs.trials import INVALID, Goal, Trial

SPACE = {
    "optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True),
    "model.width": CategoricalDistribution(["8", "16"]),
}
VALUES = {0.0001: 0.9, 0.001: 0.3, 0.01: 0.2, 0.1: 0.8, 0.05: 0.7, 0.003: 0.25}


def study_on_disk(outputs: Path, paused: bool = False) -> Path:
    """Six trials; with `paused`, only the best run is completed."""
    folder = outputs / "studies" / "toy-0123abcd"
    folder.mkdir(parents=True)
    goal = Goal("val/loss", "minimize")
    for number, (lr, loss) in enumerate(VALUES.items()):
        params = {"optimizer.lr": lr, "model.width": "8" if number % 2 else "16"}
        run = RunFolder(outputs / "toy" / f"{number:08x}").create()
        is_open = paused and loss != min(VALUES.values())
        steps = (10,) if is_open else (10, 30)
        record = {
            "name": "toy",
            "id": f"{number:08x}",
            "state": "paused" if is_open else "completed",
            "step": steps[-1],
            "trials": [
                Trial(goal, number, params, SPACE, target=10 if is_open else None).as_data(
                    folder.name
                )
            ],
        }
        run.record_path.write_text(json.dumps({"attempts": [], "max_steps": 30, **record}))
        rows = [{"step": step, "time": 1.8e9, "val/loss": loss + 1 / step} for step in steps]
        run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / INVALID).mkdir()
    invalid = Trial(
        goal, len(VALUES), {"optimizer.lr": 0.02, "model.width": "8"}, SPACE, rejection="no"
    )
    alone = {"format_version": FORMAT_VERSION, "trials": [invalid.as_data(folder.name)]}
    (folder / INVALID / "trial-0006.json").write_text(json.dumps(alone))
    return folder
