"""Test whether the values of a key make a difference over seeds."""

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations

from launcher.errors import ConfigError, needing
from launcher.process.argument_parser import Parser
from launcher.process.text_table import TextTable
from launcher.runs.filters import FILTER_HELP, check_keys, select, value_of
from launcher.runs.find_runs import find_runs
from launcher.runs.format import join_names, number
from launcher.runs.look.compare import code
from launcher.runs.look.differences import differences
from launcher.runs.look.series import check_metrics
from launcher.runs.stored_run import StoredRun, StoredRuns

SEED = "seed"
LEVEL = 0.05
Values = Mapping[str, float]


def add_arguments(parser: Parser) -> None:
    parser.argument("key", "KEY", "what the arms differ in: optimizer, optimizer.lr, model")
    parser.argument("words", "FILTER", f"of the runs: {FILTER_HELP}", nargs="*", default=[])
    parser.argument("--metric", "KEY", "(default: val/loss)", default="val/loss")
    parser.argument("--step", "N", "compare the values of this step (default: the last)", type=int)
    parser.flag("--json", "the same as JSON")


def run(arguments: argparse.Namespace) -> int:
    runs = select(find_runs(arguments.outputs), arguments.words)
    result = run_test(runs, arguments.key, arguments.metric, arguments.step)
    if arguments.json:
        print(json.dumps(asdict(result), indent=2))
        return 0
    arms, pairs = result.tables()
    arms.print()
    print()
    pairs.print()
    return 0


@dataclass(frozen=True)
class ArmComparison:
    """The mean of one arm less the mean of another. `low` and `high` are its 95 % interval."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    """Adjusted for the number of comparisons (Holm)."""
    test: str


@dataclass(frozen=True)
class TestOutcome:
    """Findings of a test: the values of each arm at the step by seed, and each pair of arms."""

    key: str
    metric: str
    step: int
    arms: Mapping[str, Values]
    comparisons: Sequence[ArmComparison]

    def tables(self) -> Iterator[TextTable]:
        interval = "95 % interval"
        p = "p" if len(self.comparisons) == 1 else "p (Holm)"
        arms = [
            (
                arm,
                str(len(values)),
                number(statistics.fmean(values.values())),
                number(statistics.stdev(values.values())),
            )
            for arm, values in self.arms.items()
        ]
        pairs = [
            (
                f"{pair.first} - {pair.second}",
                number(pair.difference),
                f"{number(pair.low)} to {number(pair.high)}",
                f"{pair.p:.2g}",
                pair.test,
            )
            for pair in self.comparisons
        ]
        right = frozenset((1, 2, 3))
        heading = f"{self.metric} at step {self.step}"
        yield TextTable((self.key, "n", heading, "sd"), arms, right, folds=True)
        yield TextTable((self.key, "difference", interval, p, "test"), pairs, right, folds=True)

    def __repr__(self) -> str:
        """Return the tables, for a notebook."""
        return "\n\n".join("\n".join(table.lines()) for table in self.tables())


def run_test(runs: StoredRuns, key: str, metric: str, step: int | None = None) -> TestOutcome:
    """Compare the runs by their values of a key; the command has the same arguments."""
    groups = group_runs(runs, key)
    check_alike(groups, key)
    step, arms = measure_arms(groups, metric, step)
    return TestOutcome(key, metric, step, arms, compare_arms(arms))


def group_runs(runs: StoredRuns, key: str) -> dict[str, list[StoredRun]]:
    if key == SEED:
        raise ConfigError("'seed': the arms of a test differ in another key; e.g. optimizer.lr.")
    check_keys(runs, [key])
    groups: dict[str, list[StoredRun]] = {}
    for stored in runs:
        if stored.settings and (key in stored.choices or key in stored.settings):
            groups.setdefault(str(value_of(stored, key)), []).append(stored)
    if len(groups) < 2:
        raise ConfigError(
            f"'{key}': a test compares runs with several values of it; found {join_names(groups)}."
        )
    return groups


def check_alike(groups: Mapping[str, StoredRuns], key: str) -> None:
    """Check that runs differ only in the keys of the arms and in their seeds."""
    runs = [run for group in groups.values() for run in group]
    for name, group in groups.items():
        error = ""
        differing = other_keys(group)
        if differing:
            error = f"its runs differ in {join_names(differing)}, and not in the seed alone"
        elif len({*map(seed_of, group)}) < max(2, len(group)):
            error = "needs runs of two seeds at least, and one run of each"
        if error:
            raise ConfigError(f"{key}={name}: {error}; choose with a filter.")
    # Strategy and ranks are keys of the configuration too, where they may count.
    differing = other_keys(runs, key)
    differing += [name for name in code(runs) if name not in ("strategy", "ranks")]
    if differing:
        raise ConfigError(
            f"'{key}': the arms differ in {join_names(differing)} as well; choose with a filter."
        )


def other_keys(runs: StoredRuns, key: str = SEED) -> list[str]:
    """Return the keys that differ between runs, except `seed`, `key`, and what repeats them."""
    names = {name for run in runs for name in run.settings if f"{name}.".startswith(f"{key}.")}
    expected = [[run.text(name) for run in runs] for name in names | {SEED}]
    differing = {name for row in differences(runs) for name in row} - names - {SEED, key}
    return sorted(name for name in differing if [run.text(name) for run in runs] not in expected)


def seed_of(run: StoredRun) -> str:
    return str(run.text(SEED))


def measure_arms(
    groups: Mapping[str, StoredRuns], metric: str, step: int | None
) -> tuple[int, dict[str, Values]]:
    """Return the step at which the arms are compared, and their values there."""
    runs = [run for group in groups.values() for run in group]
    check_metrics(runs, [metric])
    curves = {run.label: run.history.curve(metric).by_step() for run in runs}
    if step is None:
        step = max(last for curve in curves.values() for last in curve)
    unfit = [name for name, curve in curves.items() if not math.isfinite(curve.get(step, math.nan))]
    if unfit:
        raise ConfigError(
            f"--step={step}: {metric} has no finite value there in {join_names(unfit)}."
        )
    return step, {
        name: {seed_of(run): curves[run.label][step] for run in group}
        for name, group in groups.items()
    }


def compare_arms(arms: Mapping[str, Values]) -> list[ArmComparison]:
    """Compare all pairs of arms; the p-values are adjusted for their number (Holm 1979)."""
    pairs = [comparison(one, arms[one], other, arms[other]) for one, other in combinations(arms, 2)]
    order = sorted(range(len(pairs)), key=lambda index: pairs[index].p)
    floor = 0.0
    for rank, index in enumerate(order):
        floor = max(floor, min(1.0, (len(pairs) - rank) * pairs[index].p))
        pairs[index] = replace(pairs[index], p=floor)
    return pairs


def comparison(first: str, one: Values, second: str, other: Values) -> ArmComparison:
    """Compare two arms, paired by seed if both have the same seeds."""
    with needing("test needs scipy: pip install 'torch-launcher[statistics]'."):
        from scipy import stats

    x = [*one.values()]
    y = [*other.values()]
    is_paired = one.keys() == other.keys()
    samples = [[one[seed] - other[seed] for seed in one]] if is_paired else [x, y]
    # Smaller differences come from the subtraction.
    rounding = 1e-12 * max(map(abs, x + y))
    if all(max(sample) - min(sample) <= rounding for sample in samples):
        raise ConfigError(f"{first} - {second}: is the same for all seeds; nothing to test.")
    result = (
        stats.ttest_1samp(*samples, 0) if is_paired else stats.ttest_ind(*samples, equal_var=False)
    )
    interval = result.confidence_interval(1 - LEVEL)
    p = float(result.pvalue)
    gap = statistics.fmean(x) - statistics.fmean(y)
    test = "paired t" if is_paired else "Welch"
    return ArmComparison(first, second, gap, float(interval.low), float(interval.high), p, test)
