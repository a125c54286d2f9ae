"""Store the files of a new format: `python -m support.store_format`, in the folder tests.

It trains the run of tests/stored, and writes its files for the numbers of this version.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from optuna.distributions import FloatDistribution

from launcher.rundir.record_format import FORMAT_VERSION
from launcher.runs.trials import Goal, Trial
from support.paths import ROOT

COMMAND = (
    "model=mlp", "data=synthetic", "trainer.max_steps=4", "trainer.pause_at=2",
    "model.hidden_dim=2", "model.num_layers=1", "model.embedding_dim=2", "model.context=2",
    "data.vocab_size=4", "data.seq_len=4", "data.num_samples=64", "data.num_val_samples=4",
    "data.batch_size=4", "hooks=[default,ema]", "strategy=none", "device=cpu",
)  # fmt: skip
KEPT = ("run.json", "metrics.jsonl", "checkpoints")


def main() -> None:
    target = ROOT / "tests" / "stored" / f"format-{FORMAT_VERSION}"
    target.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "launcher", *COMMAND], cwd=folder, check=True)
        (record,) = Path(folder).glob("outputs/*/*/run.json")
        for name in KEPT:
            source = record.with_name(name)
            if source.is_dir():
                shutil.copytree(source, target / name, symlinks=True)
            else:
                shutil.copy(source, target / name)
        place = f"/runs/{'/'.join(record.parts[-3:-1])}"
    data = json.loads((target / "run.json").read_bytes())
    data["folder"] = place
    data["attempts"][0].update({"host": "node", "user": "user"})
    space = {"optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True)}
    goal = Goal("val/loss", "minimize")
    trial = Trial(goal, 6, {"optimizer.lr": 0.02}, space, rejection="no", target=10)
    data["trials"] = [{**trial.as_data("toy-0123abcd"), "rejection": None}]
    write(target / "run.json", data)
    alone = {"format_version": FORMAT_VERSION, "trials": [trial.as_data("toy-0123abcd")]}
    write(target / "trial.json", alone)


def write(file: Path, data: object) -> None:
    file.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
