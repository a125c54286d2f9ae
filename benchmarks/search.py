"""A hyperparameter search, compared with random search in as many training steps.

The time to ask for a trial is measured too.

    python benchmarks/search.py --seeds 5

On digits, over the four keys of `hpo=basic`, or with `--space lr` over the learning rate alone:
ASHA with TPE trains `--trials` trials; then random search trains each of its trials to the end, as
many as fit in the steps that ASHA took. Then a study of 1,000 completed trials is asked for
another. Figures are printed.
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

from launcher.rundir.history import Curve
from launcher.runs.trials import Trial
from launcher.search.sampling import Sampling
from launcher.search.search_space import Space
from launcher.search.study_settings import Settings

OTHER = 1000
FIXED = (
    "model=mlp",
    "model.hidden_dim=64",
    "data=digits",
    "device=cpu",
    "hooks.evaluation.interval=20",
)
SPACES = {"basic": ["hpo=basic"], "lr": ["optimizer.lr=tag(log,interval(1e-5,10))"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=24, help="of ASHA")
    parser.add_argument(
        "--steps", type=int, default=540, help="of a trial that is trained to its end"
    )
    parser.add_argument("--space", choices=SPACES, default="basic")
    parser.add_argument("--parallel", type=int, default=2, help="trials at a time")
    parser.add_argument("--asks", type=int, default=5, help="for the time to ask")
    arguments = parser.parse_args()
    print(f"{'seed':>4}  {'search':<9} {'trials':>6} {'steps':>6}  val/loss  best parameters")
    pairs = [compared(seed, arguments) for seed in range(arguments.seeds)]
    medians = [statistics.median(values) for values in zip(*pairs, strict=True)]
    wins = sum(asha < other for asha, other in pairs)
    print(
        f"median val/loss: asha, tpe {medians[0]:.4f}, random {medians[1]:.4f}; asha wins {wins} of"
        f" {len(pairs)}"
    )
    for count in (100, 1000):
        times = [seconds_to_ask(count, number) for number in range(arguments.asks)]
        print(
            f"ask after {count:4d} trials: {statistics.median(times):.3f} CPU seconds (median of"
            f" {len(times)})"
        )


def compared(seed: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """The best values of ASHA and of random search."""
    common = [*FIXED, *SPACES[arguments.space], f"trainer.max_steps={arguments.steps}"]
    common.append(f"hpo.parallel={arguments.parallel}")
    asha = [f"hpo.seed={seed}", "hpo.pruner=asha", f"hpo.n_trials={arguments.trials}"]
    value, steps = searched("asha, tpe", seed, [*common, *asha])
    trials = max(1, round(steps / arguments.steps))
    other_seed = f"hpo.seed={seed + OTHER}"  # with the same seed, TPE's first trials would be these
    other, _ = searched(
        "random", seed, [*common, other_seed, "hpo.sampler=random", f"hpo.n_trials={trials}"]
    )
    return value, other


def searched(name: str, seed: int, overrides: list[str]) -> tuple[float, int]:
    """Search, and print the result; the best value, and the steps that were trained."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "hydra/sweeper=optuna", *overrides, f"paths.outputs={folder}"]
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        steps = [json.loads(path.read_text())["step"] for path in Path(folder).glob("*/*/run.json")]
        (path,) = Path(folder).glob("studies/*/optimization_results.yaml")
        best = yaml.safe_load(path.read_text())
    params = " ".join(f"{key}={short(value)}" for key, value in best["best_params"].items())
    print(
        f"{seed:4d}  {name:<9} {len(steps):6d} {sum(steps):6d}  {best['best_value']:8.4f} "
        f" {params}",
        flush=True,
    )
    return best["best_value"], sum(steps)


def short(value: int | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def seconds_to_ask(count: int, seed: int) -> float:
    """CPU seconds in which a study of `count` completed trials asks for the next one.

    It was asked once before.
    """
    settings = Settings("val/loss", "minimize", n_trials=count + 2, seed=seed)
    space: Space = {
        "optimizer.lr": FloatDistribution(1e-5, 1e-1, log=True),
        "model.dropout": FloatDistribution(0.0, 0.5),
        "model.hidden_dim": CategoricalDistribution(["16", "32", "64"]),
    }
    sampling = Sampling(settings, space, completed(space, count, seed))
    sampling.ask()
    began = time.process_time()
    sampling.ask()
    return time.process_time() - began


def completed(space: Space, count: int, seed: int) -> list[Trial]:
    """Completed trials of a study."""
    numbers, trials = random.Random(seed), []
    for number in range(count):
        params = {
            "optimizer.lr": 10 ** numbers.uniform(-5, -1),
            "model.dropout": numbers.uniform(0, 0.5),
            "model.hidden_dim": numbers.choice(["16", "32", "64"]),
        }
        curve = Curve(
            [*map(float, range(10, 91, 10))],
            [params["optimizer.lr"] + 1 / step for step in range(1, 10)],
        )
        trials.append(
            Trial(number, params, space, run=f"r/{number}", state="completed", curve=curve)
        )
    return trials


if __name__ == "__main__":
    main()
