"""Studies on disk: the files that a search leaves, and runs with a value of each objective."""

import json
from pathlib import Path

from optuna.distributions import CategoricalDistribution, FloatDistribution

from launcher.rundir.folder import RunFolder
from launcher.search.settings import Settings
from launcher.search.trial_store import TrialStore
from launcher.runs.trials import Trial

SPACE = {
    "optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True),
    "model.width": CategoricalDistribution(["8", "16"]),
}
VALUES = {0.0001: 0.9, 0.001: 0.3, 0.01: 0.2, 0.1: 0.8, 0.05: 0.7, 0.003: 0.25}


def study_on_disk(
    outputs: Path, objectives: tuple[str, ...] = ("val/loss",), paused: bool = False
) -> Path:
    """Six trials. Accuracy is better where the loss is worse; with `paused`, only the best run is
    completed."""
    folder = outputs / "studies" / "toy-0123abcd"
    folder.mkdir(parents=True)
    directions = ["maximize" if name == "val/accuracy" else "minimize" for name in objectives]
    settings = Settings(objectives, tuple(directions))
    store = TrialStore(folder, settings, SPACE)
    store.load()
    trials: list[Trial] = []
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
        }
        run.record_path.write_text(json.dumps({"attempts": [], "max_steps": 30, **record}))
        rows = [
            {"step": step, "time": 1.8e9, "val/loss": loss + 1 / step, "val/accuracy": loss}
            for step in steps
        ]
        run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        store.queue = [*store.queue, params]
        trials.append(store.ask(trials))
        trials[-1].run = f"toy/{number:08x}"
        store.record(trials[-1])
    trials.append(store.ask(trials))
    trials[-1].refusal = "no"
    store.record(trials[-1])
    with open(folder / "journal.log", "ab") as file:
        file.write(b'{"op_code":4,"wor')
    return folder
