"""Benchmarks and the way their contenders are run.

Each is in a process of its own, in alternating order.
"""

import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import truediv
from pathlib import Path
from typing import Any

from benchmarks import callgrind
from benchmarks.turns import Ring

ROOT = Path(__file__).parent.parent


Figure = float | dict[str, float] | list[float]
"""Measurement of a contender. Several figures, by unit: the first is compared, the others are shown
too. A list: a figure of each turn."""


class NotRun(Exception):
    """This contender cannot run here; the message says why."""


@dataclass(frozen=True)
class Benchmark:
    """A figure of several contenders.

    Args:
        unit: of the figure; less is better.
        contenders: by name; the first is the yardstick. Each gets whether it is to be quick, and
            returns its figure. If `counts_instructions`, it returns the number of steps between its
            `Counter.start` and `Counter.stop`.
        goals: the largest ratio to the yardstick that is aimed at, by contender.
        takes_turns: contenders run at the same time and take turns (see `benchmarks.turns`); the
            ratio is the median of the turns' ratios.
        ranks: of each contender that takes turns.
    """

    name: str
    title: str
    unit: str
    contenders: Mapping[str, Callable[[bool], Figure]]
    goals: Mapping[str, float] = field(default_factory=dict)
    counts_instructions: bool = False
    repeats: int = 3
    takes_turns: bool = False
    ranks: int = 1


@dataclass
class Row:
    contender: str
    values: list[float] = field(default_factory=list)
    others: list[dict[str, float]] = field(default_factory=list)
    """Further measurements, one for each value of `values`."""
    not_run: str | None = None
    ratio: float | None = None
    goal: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def other(self, unit: str) -> float:
        return statistics.median(others[unit] for others in self.others)

    def add(self, figure: Figure) -> None:
        if isinstance(figure, list):
            self.values += figure
            return
        first, *others = (figure if isinstance(figure, dict) else {"": figure}).items()
        self.values.append(first[1])
        if others:
            self.others.append(dict(others))


def run(benchmark: Benchmark, quick: bool = False, repeats: int | None = None) -> list[Row]:
    """Every contender; a row of each."""
    if benchmark.takes_turns:
        return run_in_turn(benchmark, quick)
    rows = {name: Row(name, goal=benchmark.goals.get(name)) for name in benchmark.contenders}
    default = 1 if quick or benchmark.counts_instructions else benchmark.repeats
    for round_ in range(repeats or default):
        for row in list(rows.values())[:: -1 if round_ % 2 else 1]:
            if row.not_run is None:
                try:
                    row.add(run_one(benchmark, row.contender, quick))
                    done = f"{row.contender}: {row.values[-1]:.4g} {benchmark.unit}"
                    print(done, file=sys.stderr, flush=True)
                except NotRun as reason:
                    row.not_run = str(reason)
    yardstick = next(iter(rows.values()))
    for row in rows.values():
        if row.values and yardstick.values and row.not_run is None:
            row.ratio = row.median / yardstick.median
    return list(rows.values())


def run_in_turn(benchmark: Benchmark, quick: bool) -> list[Row]:
    """All contenders at the same time."""
    rows = [Row(name, goal=benchmark.goals.get(name)) for name in benchmark.contenders]
    with tempfile.TemporaryDirectory() as folder:
        ring = Ring(Path(folder), len(rows), benchmark.ranks)

        def contend(number: int, row: Row) -> None:
            try:
                row.add(run_one(benchmark, row.contender, quick, ring.environment(number)))
            except NotRun as reason:
                row.not_run = str(reason)
            ring.exit_after_signal(number)

        with ThreadPoolExecutor(len(rows)) as pool:
            list(pool.map(contend, range(len(rows)), rows))
    for row in rows:
        if row.values and rows[0].values:
            row.ratio = statistics.median(map(truediv, row.values, rows[0].values))
    return rows


def run_one(
    benchmark: Benchmark, contender: str, quick: bool, variables: Mapping[str, str] | None = None
) -> Figure:
    """Run a contender, and return its figure.

    Raises:
        NotRun: it cannot run here.
    """
    child = [
        sys.executable,
        "-m",
        "benchmarks",
        "--child",
        benchmark.name,
        contender,
        *(["--quick"] if quick else []),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    environment |= variables or {}
    if not benchmark.counts_instructions:
        return _answer(
            subprocess.run(child, capture_output=True, text=True, env=environment, cwd=ROOT)
        )
    if not callgrind.is_available():
        raise NotRun("valgrind on x86-64 is needed")
    done, counts = callgrind.count(child, environment, ROOT)
    steps = _answer(done)
    return counts["steps"] / steps if counts and isinstance(steps, float) else steps


def _answer(done: "subprocess.CompletedProcess[str]") -> Figure:
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode or not last.startswith("{"):
        error = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise NotRun(f"failed: {error}")
    answer = json.loads(last)
    if "not_run" in answer:
        raise NotRun(answer["not_run"])
    figure: Figure = answer["figure"]
    return float(figure) if isinstance(figure, int) else figure


def child(benchmark: Benchmark, contender: str, quick: bool) -> None:
    """Print the figure as the last line, in a contender's process."""
    try:
        answer: dict[str, Any] = {"figure": benchmark.contenders[contender](quick)}
    except ModuleNotFoundError as error:
        answer = {"not_run": f"{error.name} is not installed"}
    except NotRun as reason:
        answer = {"not_run": str(reason)}
    print("\n" + json.dumps(answer), flush=True)


def cpu_seconds(step: Callable[[], Any], warm_up: int, steps: int) -> float:
    """CPU seconds of this process for a step."""
    for _ in range(warm_up):
        step()
    start = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - start) / steps


def status(key: str) -> int:
    """Bytes, from /proc/self/status (Linux)."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)
    )
    return int(line.split()[1]) * 1024


def machine() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    def found(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    packages = (
        "torch-launcher",
        "torch",
        "numpy",
        "lightning",
        "transformers",
        "accelerate",
        "trainloop",
    )
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": cpu, "cores": os.cpu_count(), "system": platform.platform(),
        "python": platform.python_version(),
        "load": list(os.getloadavg()),
        "versions": {package: found(package) for package in packages},
    }  # fmt: skip


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def as_json(results: Mapping[str, list[Row]]) -> str:
    rows = {name: [dataclasses.asdict(row) for row in rows] for name, rows in results.items()}
    return json.dumps({"machine": machine(), "results": rows}, indent=1) + "\n"


def table(benchmark: Benchmark, rows: list[Row]) -> str:
    """Print the table in Markdown."""
    others = list(dict.fromkeys(unit for row in rows for extra in row.others for unit in extra))
    heads = ["", benchmark.unit, "ratio", "goal", *others]
    lines = [f"### {benchmark.title}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        if row.not_run is not None:
            lines.append(f"| {row.contender} | not run: {row.not_run} |" + " |" * (len(heads) - 2))
            continue
        spread = (
            f" ({number(min(row.values))} to {number(max(row.values))})"
            if len(row.values) > 1
            else ""
        )
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        goal = "" if row.goal is None else f"{row.goal:g}"
        cells = [row.contender, f"{number(row.median)}{spread}", ratio, goal]
        cells += [number(row.other(unit)) if row.others else "" for unit in others]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def configure(overrides: list[str]) -> Any:
    """Return the checked configuration of a command line."""
    from launcher.config.compose.composer import command  # late: most benchmarks need no Hydra

    with command(overrides) as words:
        return words.run()
