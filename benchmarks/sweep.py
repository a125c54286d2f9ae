"""Sweeps and listings, for one of many runs: composing and checking beside one composition of Hydra's, trivial runs in
one process beside a sweep of a minimal Hydra program, the first and the second listing of runs that have ended."""

import os
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.measure import ROOT, Benchmark
from benchmarks.startup import HYDRA, LAUNCHER, RUN, RUNS, spent

GROUPS = ["model=mlp", "data=digits", "dispatch=slurm"]


def hydra(quick: bool) -> float:
    from hydra import compose

    from launcher.config import identity  # noqa: F401 - registers the resolvers
    from launcher.config.session import session

    with session(None):
        start, count = time.process_time(), 3 if quick else 10
        for seed in range(count):
            compose("config", [*GROUPS, f"seed={seed}"], return_hydra_config=True)
        return (time.process_time() - start) / count * 1000


def checked(count: int, quick: bool) -> float:
    from hydra.types import RunMode

    from launcher.cli.sweep import check_jobs
    from launcher.config.session import loader, session

    count = count // 50 if quick else count
    with session(None):
        master = loader().load_configuration("config", GROUPS, RunMode.MULTIRUN)
        start = time.process_time()
        check_jobs(loader(), master, [[*GROUPS, f"seed={seed}", "optimizer.lr=0.1"] for seed in range(count)])
        return (time.process_time() - start) / count * 1000


def swept(words: list[str], quick: bool) -> float:
    """A sweep of many runs less a sweep of two, for each run."""
    few, many = 2, 4 if quick else 22
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(HYDRA)
        for count in (few, many):
            (Path(folder) / str(count)).mkdir()
        low, high = (spent([*words, f"seed=range({count})"], Path(folder) / str(count)) for count in (few, many))
        return (high - low) / (many - few)


def repeated(count: int, quick: bool) -> float:
    """A sweep whose runs are all complete."""
    from benchmarks.run_folders import STEPS, make_sweep

    count = count // 50 if quick else count
    groups = ["model=mlp", "data=digits", "device=cpu"]
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder) / "outputs"
        make_sweep(outputs, groups, count)
        words = [*groups, f"trainer.max_steps={STEPS[-1]}", f"paths.outputs={outputs}", f"seed=range({count})"]
        return spent([*LAUNCHER, "-m", *words], ROOT) / count * 1000


def listed(again: bool, quick: bool) -> float:
    from benchmarks.run_folders import make

    count = 40 if quick else 1000
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "outputs", count)
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        times = [spent(RUNS, Path(folder)) for _ in range(1 + again)]
        return times[-1] / count * 1000


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
        "listing",
        "listing 1,000 runs that have ended",
        "ms of CPU per run",
        {"the first time": partial(listed, False), "the second time": partial(listed, True)},
    ),
]
