"""Make folders of runs that have ended, as training leaves them.

They are for measuring `runs`, sweeps and searches.

python benchmarks/run_folders.py OUTPUTS --count 1000
"""

import argparse
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import yaml
from hydra.types import RunMode

from benchmarks.measure import configure
from launcher.cli.sweep import check_jobs
from launcher.config.compose.composer import command
from launcher.config.identity.record_entry import command_record
from launcher.rundir.folder import RunFolder
from launcher.rundir.metrics_summary import summary
from launcher.rundir.provenance import VERSIONED, code_state
from launcher.rundir.record_format import AttemptData, iso

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
MODELS = ("mlp", "gpt")
STARTED = 1_800_000_000.0
STEPS = range(10, 1001, 10)


def make(outputs: Path, count: int) -> None:
    """A sweep over the model, the learning rate and the seed; every 20th run failed."""
    configs = [base(outputs, model) for model in MODELS]
    for index in range(count):
        plain, hydra = configs[index % len(MODELS)]
        plain["optimizer"]["lr"], plain["seed"] = 1e-4 * (1 + index // 2 % 50), index // 100
        words = [
            *hydra["overrides"]["task"][:3],
            f"optimizer.lr={plain['optimizer']['lr']}",
            f"seed={plain['seed']}",
        ]
        run = plain["run"]
        run["id"] = hashlib.sha256(str(index).encode()).hexdigest()[:8]
        run["dir"] = str(outputs / run["name"] / run["id"])
        write(plain, {**hydra, "overrides": {**hydra["overrides"], "task": words}}, index)


def make_sweep(outputs: Path, words: list[str], count: int) -> None:
    """The runs of `-m WORDS seed=range(COUNT)`, all complete, each with a checkpoint."""
    words = [*words, f"trainer.max_steps={STEPS[-1]}", f"paths.outputs={outputs}"]
    swept = [*words, f"seed=range({count})"]
    with command(swept, mode=RunMode.MULTIRUN) as typed:
        jobs = check_jobs(typed, typed.expand())
    code = dump(code_state(also=VERSIONED))
    for index, job in enumerate(jobs):
        write(job.config.stored, job.config.hydra or {}, 2 * index)  # an odd one may have failed
        checkpoint = RunFolder(job.folder).checkpoints / f"step-{STEPS[-1]:08}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "config.yaml").write_text(
            dump({k: v for k, v in job.plain.items() if k != "hpo"})
        )
        (checkpoint / "code.yaml").write_text(code)
        (checkpoint / "manifest.json").write_text("{}")


def dump(value: Any) -> str:
    return yaml.dump(value, Dumper=DUMPER, sort_keys=False)


def base(outputs: Path, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    data = "digits" if model == "mlp" else "synthetic"
    config = configure([f"model={model}", f"data={data}", f"paths.outputs={outputs}"])
    return config.stored, config.hydra or {}


def write(config: dict[str, Any], hydra: dict[str, Any], index: int) -> None:
    folder = RunFolder(config["run"]["dir"]).create()
    started, rate = STARTED + 60 * index, config["optimizer"]["lr"]
    losses = [2.3 * math.exp(-50 * rate * step / 100) + 0.1 for step in STEPS]
    times = {
        "train/step_time": 0.001,
        "train/data_time": 0.0001,
        "train/lr/0": rate,
        "train/grad_norm": 0.5,
    }
    lines = [
        {
            "step": step,
            "time": started + step,
            "attempt": 1,
            "samples": step * 64,
            "train/loss": loss,
            **times,
        }
        for step, loss in zip(STEPS, losses, strict=True)
    ]
    lines[-1]["val/loss"] = losses[-1]
    folder.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    failed, end = index % 20 == 19, started + STEPS[-1]
    outcome: Any = "failed" if failed else "completed"
    attempt: AttemptData = {
        "number": 1,
        "started": iso(started),
        "host": "node",
        "pid": 1000 + index,
        "start_step": 0,
        "ended": iso(end),
        "slurm_job_id": None,
        "end_step": STEPS[-1],
        "outcome": outcome,
        "signal": None,
        "exit_code": int(failed),
        "reason": "RuntimeError: out of memory" if failed else None,
    }
    record = {
        "id": config["run"]["id"], "name": config["run"]["name"], "state": outcome,
        "step": STEPS[-1], "max_steps": STEPS[-1], "checkpoint": STEPS[-1], "world_size": 1,
        "strategy": "none",
        "git": {"commit": "0" * 40, "dirty": False},
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "loss": losses[-1], "best": {"metric": "val/loss", "value": losses[-1], "step": STEPS[-1]},
        "forked_from": None, "logged": summary(folder.metrics_path), "attempts": [attempt],
    } | command_record(config, hydra)  # fmt: skip
    folder.record_path.write_text(json.dumps(record, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    arguments = parser.parse_args()
    make(arguments.outputs.absolute(), arguments.count)


if __name__ == "__main__":
    main()
