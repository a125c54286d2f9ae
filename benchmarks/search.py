"""A hyperparameter search beside random search in as many training steps, and the time to ask for a trial.

    python benchmarks/search.py --seeds 3

On digits: ASHA with TPE trains `--trials` trials; then random search trains each of its trials to the end, as many as
fit in the steps that ASHA took. Then a study of 1,000 completed trials is asked for another. Figures are printed.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution

from launcher.run.history import Curve
from launcher.sweepers.settings import Settings
from launcher.sweepers.study import Study
from launcher.sweepers.trials import Trial

MAX_STEPS, OTHER = 180, 1000
FIXED = (
    "model=mlp", "data=digits", "device=cpu", f"trainer.max_steps={MAX_STEPS}", "data.num_workers=0",
    "hooks.evaluation.interval=20", "optimizer.lr=tag(log,interval(1e-5,10))",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=18, help="of ASHA")
    parser.add_argument("--parallel", type=int, default=2, help="trials at a time")
    parser.add_argument("--asks", type=int, default=5, help="for the time to ask")
    arguments = parser.parse_args()
    print(f"{'seed':>4}  {'search':<9} {'trials':>6} {'steps':>6}  {'best lr':>8}  val/loss")
    for seed in range(arguments.seeds):
        common = [f"hpo.seed={seed}", f"hpo.parallel={arguments.parallel}"]
        asha = [*common, "hpo.pruner=asha", f"hpo.n_trials={arguments.trials}"]
        steps = searched("asha, tpe", seed, asha)
        common[0] = f"hpo.seed={seed + OTHER}"  # with the same seed, TPE's first trials would be these
        searched("random", seed, [*common, "hpo.sampler=random", f"hpo.n_trials={round(steps / MAX_STEPS)}"])
    for count in (100, 1000):
        times = [seconds_to_ask(count, number) for number in range(arguments.asks)]
        print(f"ask after {count:4d} trials: {statistics.median(times):.3f} CPU seconds (median of {len(times)})")


def searched(name: str, seed: int, overrides: list[str]) -> int:
    """Search, and print the result; the steps that were trained."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "hydra/sweeper=optuna", *FIXED, *overrides, f"paths.outputs={folder}"]
        done = subprocess.run([sys.executable, "-m", "launcher", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        steps = [json.loads(path.read_text())["step"] for path in Path(folder).glob("*/*/run.json")]
        (path,) = Path(folder).glob("studies/*/optimization_results.yaml")
        best = yaml.safe_load(path.read_text())
    lr, loss = best["best_params"]["optimizer.lr"], best["best_value"]
    print(f"{seed:4d}  {name:<9} {len(steps):6d} {sum(steps):6d}  {lr:8.3g}  {loss:.4f}", flush=True)
    return sum(steps)


def seconds_to_ask(count: int, seed: int) -> float:
    """CPU seconds in which a study of `count` completed trials asks for the next one. It was asked once before: a trial
    that has ended is converted only once."""
    settings = Settings(("val/loss",), ("minimize",), n_trials=count + 2, seed=seed)
    space = {
        "optimizer.lr": FloatDistribution(1e-5, 1e-1, log=True),
        "model.dropout": FloatDistribution(0.0, 0.5),
        "model.hidden_dim": CategoricalDistribution(["16", "32", "64"]),
    }
    study = Study("benchmark", settings, space)
    trials: list[Trial] = []
    numbers = random.Random(seed)
    for number in range(count):
        params = {
            "optimizer.lr": 10 ** numbers.uniform(-5, -1),
            "model.dropout": numbers.uniform(0, 0.5),
            "model.hidden_dim": numbers.choice(["16", "32", "64"]),
        }
        curve = Curve([*map(float, range(10, 91, 10))], [params["optimizer.lr"] + 1 / step for step in range(1, 10)])
        trials.append(Trial(number, params, [], run=f"r/{number}", state="completed", step=90, curves=(curve,)))
    study.ask(trials[:-1])
    began = time.process_time()
    study.ask(trials)
    return time.process_time() - began


if __name__ == "__main__":
    main()
