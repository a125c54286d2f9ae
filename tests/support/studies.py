"""Studies on disk: the files that a search leaves, and runs with a value of each objective."""

import json
from pathlib import Path
from typing import Any

from launcher.run.folder import RunFolder

LOG = '{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0001, "high": 0.1, "log": true}}'
CHOICE = '{"name": "CategoricalDistribution", "attributes": {"choices": ["8", "16"]}}'
SPACE = {"optimizer.lr": json.loads(LOG), "model.width": json.loads(CHOICE)}
VALUES = {0.0001: 0.9, 0.001: 0.3, 0.01: 0.2, 0.1: 0.8, 0.05: 0.7, 0.003: 0.25}


def study_on_disk(outputs: Path, objectives: tuple[str, ...] = ("val/loss",), paused: bool = False) -> Path:
    """Six trials. Accuracy is better where the loss is worse; with `paused`, only the best run is completed."""
    folder = outputs / "studies" / "toy-0123abcd"
    folder.mkdir(parents=True)
    directions = ["maximize" if name == "val/accuracy" else "minimize" for name in objectives]
    note = {"objectives": objectives, "directions": directions, "value": "best", "space": SPACE}
    (folder / "study.json").write_text(json.dumps(note))
    lines: list[dict[str, Any]] = []
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
        rows = [{"step": step, "time": 1.8e9, "val/loss": loss + 1 / step, "val/accuracy": loss} for step in steps]
        run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines.append({"number": number, "params": params, "run": f"toy/{number:08x}", "refusal": None})
    lines.append({"number": 6, "params": {"optimizer.lr": 0.02}, "run": None, "refusal": "no"})
    (folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"number": 7, "pa')
    return folder
