"""Test whether the values of a key make a difference over seeds."""

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from launcher.config.messages import as_typed, hint
from launcher.errors import ConfigError
from launcher.runs.compare import code
from launcher.runs.differences import counts, is_group, not_counted, varying
from launcher.runs.filters import FIELDS, FILTER_HELP, check_keys, select, value_of
from launcher.runs.find import find_runs
from launcher.runs.format import number
from launcher.runs.page import StdoutConsole, grid
from launcher.runs.stored_run import StoredRun

if TYPE_CHECKING:
    from launcher.runs.statistics import Difference, Summary

SEED = "seed"
CODE_APART = ("strategy", "ranks")
"""Rows of `compare.code` that are also keys of the configuration, where they count if they can
change the numbers."""
MOST_NAMED = 4
WIDE = 200
"""Columns of a result in a notebook."""
ROUNDING = 1e-12
"""Relative tolerance. Smaller differences come from the subtraction."""


@dataclass(frozen=True)
class Arm:
    """The runs that have one value of the key, and their values of the metric by seed."""

    name: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """Two arms. `p` is adjusted for the number of comparisons (Holm)."""

    first: str
    second: str
    difference: "Difference"
    p: float
    outlook: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "key", metavar="KEY", help="what the arms differ in: optimizer, optimizer.lr, model"
    )
    parser.add_argument("words", metavar="FILTER", nargs="*", help=f"of the runs: {FILTER_HELP}")
    parser.add_argument("--metric", metavar="KEY", default="val/loss", help="(default: val/loss)")
    parser.add_argument(
        "--step", type=int, metavar="N", help="compare the values of this step (default: the last)"
    )
    parser.add_argument(
        "--exact", action="store_true", help="p-values of permutations instead of t-tests"
    )
    parser.add_argument(
        "--difference",
        type=float,
        metavar="D",
        help="the difference that matters (default: the difference that was found)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the same as JSON")
    form.add_argument(
        "--latex", action="store_true", help="the same as LaTeX's tabular, for booktabs"
    )


@dataclass(frozen=True)
class Result:
    """Findings of a test.

    They are the arms with their values of the metric at the step, and each pair of them.
    """

    key: str
    metric: str
    step: int
    arms: Sequence[Arm]
    summaries: Mapping[str, "Summary"]
    comparisons: Sequence[Comparison]

    def data(self) -> dict[str, Any]:
        """Return the result as plain containers."""
        return {
            "key": self.key,
            "metric": self.metric,
            "step": self.step,
            "arms": [
                asdict(self.summaries[arm.name]) | {"arm": arm.name, "values": dict(arm.values)}
                for arm in self.arms
            ],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
        }

    @property
    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Return the columns and rows of the two tables."""
        heading = f"{self.metric} at step {self.step}"
        return [
            arm_table(self.key, heading, self.summaries),
            comparison_table(self.key, self.comparisons),
        ]

    def print(self, page: Console) -> None:
        for columns, rows in self.tables:
            table = grid(*columns, right=columns[1:])
            for row in rows:
                table.add_row(*map(Text, row))
            page.print(table)
            page.print()
        for comparison in self.comparisons:
            line = f"{comparison.first} - {comparison.second}: {comparison.outlook}"
            page.print(line, markup=False, soft_wrap=True)

    def __repr__(self) -> str:
        with (page := Console(width=WIDE, color_system=None)).capture() as text:
            self.print(page)
        return text.get()


def run(arguments: argparse.Namespace) -> int:
    runs = select(find_runs(arguments.outputs), arguments.words)
    wanted: float | None = arguments.difference
    result = tested(runs, arguments.key, arguments.metric, arguments.step, arguments.exact, wanted)
    if arguments.json:
        print(json.dumps(result.data(), indent=2))
    elif arguments.latex:
        print("\n\n".join(latex(columns, rows) for columns, rows in result.tables))
    else:
        result.print(StdoutConsole())
    return 0


def tested(
    runs: Sequence[StoredRun],
    key: str,
    metric: str,
    step: int | None = None,
    exact: bool = False,
    difference: float | None = None,
) -> Result:
    """Compare the runs by their values of a key.

    The command has the same arguments.

    Raises:
        ConfigError: the runs cannot be compared.
    """
    try:
        from launcher.runs.statistics import summary
    except ImportError as error:
        raise ConfigError("test needs scipy: pip install 'torch-launcher[statistics]'.") from error
    if difference is not None and not 0 < difference < math.inf:
        raise ConfigError(f"--difference={difference:g}: should be a number above 0.")
    groups = grouped(runs, key)
    check_alike(groups, key)
    step, arms = measured(groups, metric, step)
    summaries = {arm.name: summary([*arm.values.values()]) for arm in arms}
    return Result(key, metric, step, arms, summaries, compared(arms, exact, difference))


# --------------------------------------------------------------------------------------- which runs
def grouped(runs: Sequence[StoredRun], key: str) -> dict[str, list[StoredRun]]:
    """Group the runs by their value of a key.

    Raises:
        ConfigError: no run has the key, all have the same value, or it distinguishes no
            configurations.
    """
    if key == SEED or key in FIELDS:
        raise ConfigError(
            f"'{key}': arms differ in a key of the configuration; e.g. optimizer or optimizer.lr."
        )
    check_keys(runs, [key])
    groups: dict[str, list[StoredRun]] = {}
    for stored in runs:
        if stored.keys and (key in stored.choices or key in stored.settings):
            groups.setdefault(str(value_of(stored, key)), []).append(stored)
    if len(groups) < 2:
        reason = f"all have {key}={next(iter(groups))}" if groups else "no run has it"
        raise ConfigError(f"'{key}': a test compares runs with several values of it, and {reason}.")
    return groups


def check_alike(groups: Mapping[str, Sequence[StoredRun]], key: str) -> None:
    """Check that runs differ only in the keys of the arms and in their seeds.

    Raises:
        ConfigError: runs differ in other keys than the arms' and `seed`, in the code, or they have
            the same seed.
    """
    runs = [run for group in groups.values() for run in group]
    ignored = not_counted(runs)
    errors: list[str] = []
    named: set[str] = set()
    for name, group in groups.items():
        within = other_keys(group, ignored)
        doubled = [seed for seed, count in Counter(map(seed_of, group)).items() if count > 1]
        if within:
            named.update(within)
            typed = f"{within[0]}={group[0].choices.get(within[0], group[0].text(within[0]))}"
            text = (
                f"its runs differ in more than the seed: {listed(within)}; choose with a filter,"
                f" e.g. {typed}."
            )
        elif doubled:
            labels = [run.label for run in group if seed_of(run) in doubled]
            text = (
                f"several runs have the seed {doubled[0]}: {listed(labels)}; choose with a filter."
            )
        elif len(group) < 2:
            text = "has one run; a test needs two seeds at least."
        else:
            continue
        errors.append(f"{key}={name}: {text}")
    between = [name for name in other_keys(runs, ignored, key) if name not in named]
    if between:
        errors.append(
            f"'{key}': the arms differ in other keys as well: {listed(between)}; choose with a"
            " filter."
        )
    differing = [name for name in code(runs) if name not in CODE_APART]
    if differing:
        text = f"the runs differ in their code: {listed(differing)}"
        errors.append(f"'{key}': {text}; choose with a filter, or run them again.")
    if errors:
        raise ConfigError(*errors)


def other_keys(runs: Sequence[StoredRun], ignored: set[str], key: str | None = None) -> list[str]:
    """Return the keys that can change the numbers and differ between runs.

    `seed`, the keys of the arms, and keys that repeat one of these are left out.
    """
    rows = [
        {name: as_typed(value) for name, value in run.settings.items() if counts(name, ignored)}
        for run in runs
    ]
    differing = varying(rows)
    expected = {
        SEED,
        *(name for name in differing if key is not None and f"{name}.".startswith(f"{key}.")),
    }
    columns = {name: [row.get(name) for row in rows] for name in differing | expected}
    echoed = [columns[name] for name in expected]
    groups = {
        name
        for name in varying(run.choices for run in runs)
        if is_group(name) and counts(name, ignored)
    }
    return sorted((groups - {key}) | {name for name in differing if columns[name] not in echoed})


def seed_of(run: StoredRun) -> str:
    return str(run.text(SEED))


def listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


# ------------------------------------------------------------------------------------- which values
def measured(
    groups: Mapping[str, Sequence[StoredRun]], metric: str, step: int | None
) -> tuple[int, list[Arm]]:
    """Return the step at which the arms are compared, and their values there.

    Raises:
        ConfigError: a run has no finite value there, or the values of an arm are all the same.
    """
    runs = [run for group in groups.values() for run in group]
    curves = {}
    for run in runs:
        curve = run.history.curve(metric)
        curves[run.label] = dict(zip(map(int, curve.x), curve.y, strict=True))
    missing = [label for label, curve in curves.items() if not curve]
    if missing:
        known = {name for run in runs for name in run.history.metrics}
        raise ConfigError(
            f"'--metric={metric}': is not logged by {listed(missing)}{hint(metric, known)}"
        )
    if step is None:
        last = {label: max(curve) for label, curve in curves.items()}
        if len(set(last.values())) > 1:
            shared = set.intersection(*(set(curve) for curve in curves.values()))
            advice = f"; compare them at --step={max(shared)}" if shared else ""
            steps = listed([f"{label} at {step}" for label, step in last.items()])
            raise ConfigError(
                f"'--metric={metric}': the runs end at different steps: {steps}{advice}."
            )
        step = next(iter(last.values()))
    without = [label for label, curve in curves.items() if step not in curve]
    if without:
        raise ConfigError(f"--step={step}: {metric} has no value there in {listed(without)}.")
    infinite = [label for label, curve in curves.items() if not math.isfinite(curve[step])]
    if infinite:
        text = f"is not finite at step {step} in {listed(infinite)}; choose with a filter"
        raise ConfigError(f"'--metric={metric}': {text}.")
    arms = [
        Arm(name, {seed_of(run): curves[run.label][step] for run in group})
        for name, group in groups.items()
    ]
    for arm in arms:
        if len(set(arm.values.values())) == 1:
            raise ConfigError(
                f"{arm.name}: {metric} is the same for all seeds, so they tell nothing about its"
                " spread."
            )
    return step, arms


def compared(arms: Sequence[Arm], exact: bool, wanted: float | None) -> list[Comparison]:
    """Compare all pairs of arms, paired by seed if both have the same seeds."""
    from launcher.runs.statistics import difference, holm

    pairs = list(combinations(arms, 2))
    comparisons = []
    for first, second in pairs:
        is_paired = first.values.keys() == second.values.keys()
        one = [*first.values.values()]
        other = [second.values[seed] for seed in (first if is_paired else second).values]
        gaps = [x - y for x, y in zip(one, other, strict=False)]
        if is_paired and max(gaps) - min(gaps) <= ROUNDING * max(map(abs, one)):
            raise ConfigError(
                f"{first.name}, {second.name}: differ by the same number for all seeds; nothing to"
                " test."
            )
        comparisons.append(difference(one, other, is_paired, exact))
    return [
        Comparison(
            first.name, second.name, gap, p, outlook(gap, p, first, second, wanted, len(pairs))
        )
        for (first, second), gap, p in zip(
            pairs, comparisons, holm([gap.p for gap in comparisons]), strict=True
        )
    ]


def outlook(
    gap: "Difference", p: float, first: Arm, second: Arm, wanted: float | None, count: int
) -> str:
    """Return the number of seeds that a difference needs.

    For several comparisons, the level is divided by their number.
    """
    from launcher.runs.statistics import LEVEL, POWER, power, seeds_needed

    if wanted is None and p < LEVEL:
        return "differ."
    size, n = (
        abs(gap.mean) if wanted is None else wanted,
        min(len(first.values), len(second.values)),
    )
    if gap.least_p * count >= LEVEL:
        return (
            f"so few seeds cannot show a difference: no p-value is below {gap.least_p * count:.2g}."
        )
    if size == 0:
        return "no difference was found."
    level, effect = LEVEL / count, size / gap.sd
    if (chance := power(effect, n, gap.is_paired, level)) >= POWER and wanted is not None:
        return f"{n} seeds show a difference of {number(size)} with a probability of {chance:.0%}."
    needed = seeds_needed(effect, gap.is_paired, level)
    if needed is None:
        return f"no number of seeds that can be run would show a difference of {number(size)}."
    if needed <= n:
        return (
            f"not shown, though {n} seeds would show a difference of {number(size)} in {chance:.0%}"
            " of cases."
        )
    return (
        f"{needed - n} more seeds would show a difference of {number(size)} (with a probability of"
        f" {POWER:.0%})."
    )


# ------------------------------------------------------------------------------------------- tables
def arm_table(
    key: str, heading: str, summaries: Mapping[str, "Summary"]
) -> tuple[list[str], list[list[str]]]:
    rows = [
        [name, str(arm.n), number(arm.mean), number(arm.sd), interval(arm.low, arm.high)]
        for name, arm in summaries.items()
    ]
    return [key, "n", heading, "sd", "95 % interval"], rows


def comparison_table(
    key: str, comparisons: Sequence[Comparison]
) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            f"{comparison.first} - {comparison.second}",
            number(comparison.difference.mean),
            interval(comparison.difference.low, comparison.difference.high),
            f"{comparison.p:.2g}",
            comparison.difference.test,
        ]
        for comparison in comparisons
    ]
    return [key, "difference", "95 % interval", "p" if len(rows) == 1 else "p (Holm)", "test"], rows


def interval(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}"


def latex(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" & ".join(map(escaped, row)) + r" \\" for row in (columns, *rows)]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}"
    return "\n".join(
        [begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"]
    )


def escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)
