"""Run benchmarks, each with its peers in alternating order; print medians and ratios.

    python -m benchmarks                  # all; see --list
    python -m benchmarks loop tokens --quick
    python -m benchmarks checkpoint --millions 25    # a script of its own, with its own options

Figures are instructions (valgrind's callgrind) or CPU seconds, where the load of the machine
matters least. Peers are in benchmarks/requirements.txt; what is not installed is named as not run.
"""

import argparse
import ast
import runpy
import sys
from pathlib import Path

from benchmarks import composed, data, distributed, gpt, lanes, loop, starts, startup, sweep
from benchmarks.measure import Benchmark, Row, as_json, child, run, table

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for module in (loop, composed, gpt, distributed, lanes, data, startup, starts, sweep)
    for benchmark in module.BENCHMARKS
}
SCRIPTS = (
    "checkpoint",
    "cold_resume",
    "goodput",
    "gpu",
    "guard_cases",
    "large_checkpoint",
    "ranks",
    "run_folders",
    "search",
    "strategy_memory",
)
"""They measure what is no ratio of one figure, and are not part of `all`."""


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in SCRIPTS:
        script = sys.argv.pop(1)
        sys.argv[0] = f"python -m benchmarks {script}"
        runpy.run_module(f"benchmarks.{script}", run_name="__main__")
        return
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all"
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes, one repeat: to see that it runs"
    )
    parser.add_argument("--repeats", type=int, help="of each contender")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/benchmarks"),
        help="for results.json, results.png",
    )
    parser.add_argument("--list", action="store_true", help="print names, titles and contenders")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(BENCHMARKS[arguments.child[0]], arguments.child[1], arguments.quick)
        return
    if unknown := [name for name in arguments.names if name not in BENCHMARKS]:
        parser.error(f"{unknown[0]}: must be one of {', '.join(BENCHMARKS)}.")
    chosen = [BENCHMARKS[name] for name in arguments.names or BENCHMARKS]
    if arguments.list:
        for benchmark in chosen:
            print(f"{benchmark.name:16s} {benchmark.title}: {', '.join(benchmark.contenders)}")
        if arguments.names:
            return
        for script in SCRIPTS:
            code = Path(__file__).with_name(f"{script}.py").read_text()
            text = ast.get_docstring(ast.parse(code)) or ""
            summary = text.partition("\n\n")[0].split()
            print(f"{script:16s} {' '.join(summary)}")
        return
    results: dict[str, list[Row]] = {}
    arguments.output.mkdir(parents=True, exist_ok=True)
    for benchmark in chosen:
        results[benchmark.name] = run(benchmark, arguments.quick, arguments.repeats)
        print(table(benchmark, results[benchmark.name]), flush=True)
        (arguments.output / "results.json").write_text(as_json(results))
    plot(results, arguments.output / "results.png")


def plot(results: dict[str, list[Row]], path: Path) -> None:
    """The ratios as bars, a row of axes for each benchmark."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        print("No plot: matplotlib is not installed.", file=sys.stderr)
        return
    ratios = {
        name: [row for row in rows if row.ratio is not None] for name, rows in results.items()
    }
    ratios = {name: rows for name, rows in ratios.items() if rows}
    if not ratios:
        return
    heights = [len(rows) for rows in ratios.values()]
    figure = Figure(figsize=(8, 0.8 * len(ratios) + 0.3 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (name, rows) in zip(axes, ratios.items(), strict=True):
        bars = axis.barh([row.contender for row in rows], [row.ratio or 0.0 for row in rows])
        axis.bar_label(bars, fmt="%.3f", padding=3)
        axis.axvline(1.0, color="black", linewidth=0.5)
        axis.invert_yaxis()
        axis.set_title(
            f"{name}: {BENCHMARKS[name].unit}, over {rows[0].contender}", fontsize=9, loc="left"
        )
        axis.margins(x=0.12)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
