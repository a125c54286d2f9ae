"""Sweeps and listings, for one of many runs.

Composing and checking is compared with one composition of Hydra's, and trivial runs in one process
with a sweep of a minimal Hydra program. A listing is of runs that have ended.
"""

import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Benchmark
from benchmarks.startup import HYDRA, LAUNCHER, RUN, RUNS, spent

GROUPS = ["model=mlp", "data=digits", "dispatch=slurm"]


def hydra(quick: bool) -> float:
    from hydra import compose

    from launcher.config.compose.session import session
    from launcher.config.identity import run_id  # noqa: F401 - registers the resolvers

    with session(None):
        start, count = time.process_time(), 3 if quick else 10
        for seed in range(count):
            compose("config", [*GROUPS, f"seed={seed}"], return_hydra_config=True)
        return (time.process_time() - start) / count * 1000


def checked(count: int, quick: bool) -> float:
    from hydra.types import RunMode

    from launcher.cli.sweep import check_jobs
    from launcher.config.compose.composer import command
    from launcher.process import collector

    count = count // 50 if quick else count
    with command(GROUPS, mode=RunMode.MULTIRUN) as words:
        # The command does both: what its imports have made is never scanned.
        collector.pause()
        collector.resume()
        start = time.process_time()
        check_jobs(words, [[*GROUPS, f"seed={seed}", "optimizer.lr=0.1"] for seed in range(count)])
        return (time.process_time() - start) / count * 1000


def swept(words: list[str], quick: bool) -> float:
    """A sweep of many runs less a sweep of two, for each run."""
    few, many = 2, 4 if quick else 22
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(HYDRA)
        for count in (few, many):
            (Path(folder) / str(count)).mkdir()
        low, high = (
            spent([*words, f"seed=range({count})"], Path(folder) / str(count))
            for count in (few, many)
        )
        return (high - low) / (many - few)


def repeated(count: int, quick: bool) -> float:
    """A sweep whose runs are all complete."""
    from benchmarks.run_folders import STEPS, make_sweep

    count = count // 50 if quick else count
    groups = ["model=mlp", "data=digits", "device=cpu"]
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder) / "outputs"
        make_sweep(outputs, groups, count)
        words = [
            *groups,
            f"trainer.max_steps={STEPS[-1]}",
            f"paths.outputs={outputs}",
            f"seed=range({count})",
        ]
        return spent([*LAUNCHER, "-m", *words], ROOT) / count * 1000


class Idle:
    """A runner of trials that has nothing to do."""

    poll = 1.0

    def running(self) -> set[int]:
        return set()

    def ended(self) -> dict[int, int]:
        return {}


def study(what: str, count: int, quick: bool) -> float:
    """Make a search whose study has many trials, each with 100 lines of metrics.

    Most of them are completed.
    """
    from optuna.distributions import FloatDistribution

    from benchmarks.run_folders import make
    from launcher.runs.trials import Trial
    from launcher.search.sampling import Sampling
    from launcher.search.search import Search
    from launcher.search.study_settings import Settings

    count = count // 50 if quick else count
    settings = Settings("val/loss", "minimize", n_trials=count)
    space = {"optimizer.lr": FloatDistribution(1e-5, 1.0, log=True)}
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder)
        make(outputs, count)
        search: Any = Search(
            outputs / "studies" / "many", outputs, settings, space, [], None, Idle(), [], print
        )  # type: ignore[arg-type]
        for number, path in enumerate(sorted(outputs.glob("*/*/run.json"))):
            # Runs that failed have ended.
            trial = Trial(number, {"optimizer.lr": 1e-5 * (1 + number)}, space, failures=2)
            record = json.loads(path.read_text())
            record["trials"] = [trial.as_data("many", settings)]
            path.write_text(json.dumps(record))
        search.load()

        def rebuild() -> None:
            search.sampling = Sampling(settings, space, search.trials)

        rebuild()
        steps = {
            "read": search.load,
            "rebuild": rebuild,
            "look": search._look,
            "ask": lambda: search.sampling.ask(),
        }
        for phase, step in steps.items():
            start = time.process_time()
            step()
            if phase == what:
                return (time.process_time() - start) * 1000
        raise KeyError(what)


def searched_again(count: int, quick: bool) -> float:
    """A search that has all its trials, among the folders of many other runs."""
    from benchmarks.run_folders import make

    count = count // 50 if quick else count
    with tempfile.TemporaryDirectory() as folder:
        words = [
            *LAUNCHER,
            "-m",
            "hydra/sweeper=optuna",
            "hpo.n_trials=2",
            "optimizer.lr=0.001,0.01",
            *GROUPS[:2],
        ]
        words += [
            "trainer.max_steps=4",
            "hooks=[logging]",
            "device=cpu",
            "hpo.objective=train/loss",
        ]
        words += [f"paths.outputs={folder}/outputs"]
        spent(words, ROOT)
        make(Path(folder) / "outputs", count)
        return spent(words, ROOT)


def listed(count: int, quick: bool) -> float:
    from benchmarks.run_folders import make

    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "outputs", count // 50 if quick else count)
        return spent(RUNS, Path(folder))


BENCHMARKS = [
    Benchmark(
        "compose",
        "composing and checking the runs of a sweep",
        "ms of CPU per run",
        {
            "hydra.compose": hydra,
            "Launcher, 1,000 runs": partial(checked, 1000),
            "Launcher, 5,000 runs": partial(checked, 5000),
        },
    ),
    Benchmark(
        "local_sweep",
        "trivial runs, one after the other in one process",
        "CPU seconds per run",
        {
            "a minimal Hydra program": partial(swept, ["../program.py", "-m"]),
            "Launcher": partial(swept, [*LAUNCHER, "-m", *RUN]),
        },
    ),
    Benchmark(
        "repeated_sweep",
        "a sweep of runs that are all complete",
        "ms of CPU per run",
        {f"{count:,} runs": partial(repeated, count) for count in (100, 1000, 10000)},
        repeats=1,
    ),
    Benchmark(
        "study",
        "a search with many trials: reading them at its start, a look at them, asking for one more",
        "ms of CPU",
        {
            f"{what}, {count:,} trials": partial(study, what, count)
            for what in ("read", "rebuild", "look", "ask")
            for count in (100, 1000, 10000)
        },
        repeats=1,
    ),
    Benchmark(
        "search_again",
        "a search that has all its trials, among other runs",
        "CPU seconds",
        {
            "2 runs": partial(searched_again, 0),
            "1,002 runs": partial(searched_again, 1000),
            "10,002 runs": partial(searched_again, 10000),
        },
        repeats=1,
    ),
    Benchmark(
        "listing",
        "listing runs that have ended",
        "CPU seconds",
        {f"{count:,} runs": partial(listed, count) for count in (1000, 10000)},
    ),
]
