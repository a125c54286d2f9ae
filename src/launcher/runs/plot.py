"""Draw metrics of runs, or a hyperparameter search, as a PNG.

Training is smoothed over raw values, validation is drawn as dots, and restarts are dotted lines.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.process.arguments import path_argument
from launcher.rundir.files import save_figure
from launcher.rundir.history import Curve, is_wide
from launcher.runs.differences import differences, without_defaults
from launcher.runs.find import RUN_HELP
from launcher.runs.over import OVER_HELP, Group, band, grouped
from launcher.runs.rerun import select_runs
from launcher.runs.stored_run import StoredRun
from launcher.runs.stored_study import StoredStudy, find_study
from launcher.runs.study_plot import draw_study

LOSS, VALIDATION, TRAINING, EXACT = "train/loss", "val/", "train/", "train/lr/"
MOST_POINTS = 4000
MOST_LABELS = 12
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's palette, whose colours colour-blind people can distinguish."""
STYLE = {
    "font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": "#9aa2ab",
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#e8eaed", "axes.labelcolor": "#40474f",
    "xtick.color": "#6a737d", "ytick.color": "#6a737d", "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "lines.linewidth": 1.5, "legend.frameon": False, "figure.facecolor": "white",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help=f"{RUN_HELP}; or a filter: model=mlp, val/loss<2; or a search",
    )
    parser.add_argument(
        "--metric",
        metavar="KEY,KEY",
        default=LOSS,
        help="a panel for each (default: train/loss with val/loss)",
    )
    parser.add_argument(
        "--over",
        metavar="KEY",
        help=f"{OVER_HELP}; a band of one standard deviation around the mean",
    )
    parser.add_argument(
        "--against", choices=("step", "time", "samples"), default="step", help="the axis"
    )
    parser.add_argument(
        "--smoothing",
        type=float,
        metavar="W",
        help="from 0 (none) to below 1 (default: 0.9, and less for fewer than 100 points)",
    )
    parser.add_argument(
        "--log",
        action="store_true",
        help="a logarithmic axis (default: if values span orders of magnitude)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=path_argument,
        metavar="FILE",
        help=(
            "a .png, .svg or .pdf (default: plot.png in the run's folder; of a search:"
            " plot-history.png, ...)"
        ),
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.smoothing is not None and not 0 <= arguments.smoothing < 1:
        raise ConfigError(
            f"--smoothing={arguments.smoothing:g}: should be a number from 0 to below 1."
        )
    folder = find_study(arguments.runs[0], arguments.outputs) if len(arguments.runs) == 1 else None
    if folder is not None:
        output = arguments.output or folder / "plot.png"
        for name, figure in draw_study(StoredStudy.read(folder)):
            save(figure, output.with_stem(f"{output.stem}-{name}"))
        return 0
    runs = select_runs(arguments.runs, arguments.outputs)
    metrics = [key.strip() for key in arguments.metric.split(",") if key.strip()]
    check_metrics(runs, metrics)
    if arguments.over is not None and arguments.against == "time":
        raise ConfigError(
            "--over: the runs have no values at equal times; use --against step or samples."
        )
    groups = None if arguments.over is None else grouped(runs, arguments.over)
    output = (
        arguments.output
        or (runs[0].folder.path if len(runs) == 1 else arguments.outputs) / "plot.png"
    )
    axis = axis_of(runs, arguments.against, arguments.smoothing)
    save(draw(runs, metrics, axis, arguments.log, groups), output)
    return 0


def save(figure: Any, output: Path) -> None:
    check_suffix(figure, output)
    try:
        save_figure(figure, output)
    except OSError as error:
        raise ConfigError(f"--output={output}: cannot be written ({error.strerror}).") from error
    print(output)


def check_metrics(runs: Sequence[StoredRun], metrics: Sequence[str]) -> None:
    known = sorted({metric for run in runs for metric in run.history.metrics})
    if not known:
        raise ConfigError(
            f"{', '.join(run.label for run in runs[:8])}: nothing has been logged yet."
        )
    unknown = [metric for metric in metrics if metric not in known]
    if unknown:
        raise ConfigError(
            *(f"'--metric={key}': no run has logged this{hint(key, known)}" for key in unknown)
        )


def check_suffix(figure: Any, output: Path) -> None:
    """Check that matplotlib can write a file with this name."""
    formats = figure.canvas.get_supported_filetypes()
    if output.suffix[1:].lower() not in formats:
        raise ConfigError(f"--output={output}: the name should end in .png, .svg or .pdf.")


@dataclass(frozen=True)
class Axis:
    """Axis of the curves, its unit, and the smoothing of values (None: by their number)."""

    against: str
    unit: str
    scale: float
    smoothing: float | None

    def curve(self, run: StoredRun, metric: str) -> Curve:
        curve = run.history.curve(metric, self.against)
        return Curve([x / self.scale for x in curve.x], curve.y)


def axis_of(runs: Sequence[StoredRun], against: str, smoothing: float | None) -> Axis:
    """Make the axis. Time is in the largest unit of which the longest run takes at least two."""
    if against != "time":
        return Axis(against, against, 1.0, smoothing)
    longest = max(run.history.seconds for run in runs)
    units = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))
    unit, scale = next(
        ((unit, size) for unit, size in units if longest >= 2 * size), ("seconds", 1.0)
    )
    return Axis(against, f"time ({unit})", scale, smoothing)


def draw(
    runs: Sequence[StoredRun],
    metrics: Sequence[str],
    axis: Axis,
    log: bool = False,
    groups: Sequence[Group] | None = None,
) -> object:
    """Draw a panel for each metric, with a curve for each run, or a band for each of `groups`."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "plot needs matplotlib: pip install 'torch-launcher[pictures]'."
        ) from error
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(9, 4.2 * len(metrics)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(metrics), 1, squeeze=False)[:, 0]
        for panel, metric in zip(panels, metrics, strict=True):
            draw_panel(panel, runs, groups, metric, axis, log)
        if len(runs) == 1 and groups is None:
            figure.suptitle(plain_text(runs[0].label), fontsize=9, color="#6a737d")
        else:
            panels[0].legend(fontsize=8)
    return figure


def finite_values(runs: Sequence[StoredRun], names: Sequence[str], axis: Axis) -> list[float]:
    return [
        value
        for run in runs
        for name in names
        for value in axis.curve(run, name).y
        if math.isfinite(value)
    ]


def draw_panel(
    panel: Any,
    runs: Sequence[StoredRun],
    groups: Sequence[Group] | None,
    metric: str,
    axis: Axis,
    log: bool,
) -> None:
    """Draw a metric of all runs. The training loss has the validation loss (`dots`) next to it."""
    dots = "val/loss" if metric == LOSS else None
    shown = runs if groups is None else [run for group in groups for run in group.runs]
    names = [metric, dots] if dots else [metric]
    is_log = log or is_wide(finite_values(shown, names, axis))
    if groups is None:
        draw_runs(panel, runs, metric, dots, axis, is_log)
    else:
        draw_bands(panel, groups, metric, dots, axis, is_log)
    panel.set_title(title_of_loss(shown) if dots else metric, fontweight="bold")
    panel.set_xlabel(axis.unit)
    if is_log:
        panel.set_yscale("log", nonpositive="mask")


def draw_runs(
    panel: Any, runs: Sequence[StoredRun], metric: str, dots: str | None, axis: Axis, log: bool
) -> None:
    for run, label, color in zip(runs, labels_of(runs), cycle(COLORS), strict=False):
        style: dict[str, object] = {"color": color, "label": label}
        draw_curve(panel, axis.curve(run, metric), metric, axis.smoothing, log, style)
        if dots:
            points = axis.curve(run, dots)
            panel.plot(points.x, points.y, color=color, ls="none", marker="o", ms=4, mfc="white")
        for position in run.history.restarts(axis.against):
            panel.axvline(position / axis.scale, color=color, ls=":", lw=1)


def draw_bands(
    panel: Any, groups: Sequence[Group], metric: str, dots: str | None, axis: Axis, log: bool
) -> None:
    """Draw the mean of each group, and one standard deviation around it."""
    for group, color in zip(groups, cycle(COLORS), strict=False):
        count, label = len(group.runs), group.label or group.runs[0].name
        style = {"color": color, "label": plain_text(f"{label} (n={count})")}
        curves = [axis.curve(run, metric) for run in group.runs]
        smoothed = [
            curve.smoothed(smoothing_of(curve, metric, axis.smoothing), log) for curve in curves
        ]
        shown = band(smoothed, log)
        marks = {"marker": "o", "ms": 3.5, "mfc": "white"} if metric.startswith(VALIDATION) else {}
        panel.plot(shown.x, shown.mean, **marks, **style)
        panel.fill_between(shown.x, shown.low, shown.high, color=color, alpha=0.18, lw=0)
        if dots:
            points = band([axis.curve(run, dots) for run in group.runs], log)
            spreads = [
                [m - x for m, x in zip(points.mean, points.low, strict=True)],
                [x - m for m, x in zip(points.mean, points.high, strict=True)],
            ]
            panel.errorbar(
                points.x,
                points.mean,
                spreads,
                color=color,
                ls="none",
                marker="o",
                ms=4,
                mfc="white",
                lw=1,
            )


def smoothing_of(curve: Curve, metric: str, smoothing: float | None) -> float:
    if not metric.startswith(TRAINING) or metric.startswith(EXACT):
        return 0.0
    return default_smoothing(len(curve.x)) if smoothing is None else smoothing


def default_smoothing(points: int) -> float:
    """Return 0.9, about 10 values, or less, so that a short curve ends where its data ends."""
    return max(0.0, min(0.9, 1 - 10 / max(points, 1)))


def draw_curve(
    panel: Any,
    curve: Curve,
    metric: str,
    smoothing: float | None,
    log: bool,
    style: dict[str, object],
) -> None:
    """Draw training smoothed over raw values, validation as dots, schedules and times as is."""
    if metric.startswith(VALIDATION):
        panel.plot(curve.x, curve.y, marker="o", ms=3.5, mfc="white", **style)
        return
    weight = smoothing_of(curve, metric, smoothing)
    shown, raw = curve.smoothed(weight, log).thinned(MOST_POINTS), curve.thinned(MOST_POINTS)
    panel.plot(shown.x, shown.y, **style)
    if weight:
        panel.plot(raw.x, raw.y, color=style["color"], alpha=0.22, lw=0.8)


def title_of_loss(runs: Sequence[StoredRun]) -> str:
    has_validation = any("val/loss" in run.history.metrics for run in runs)
    return "loss (line: train, dots: val)" if has_validation else LOSS


def labels_of(runs: Sequence[StoredRun]) -> list[str]:
    """Label runs by the id and the differing keys. Of many runs, only the first are labelled."""
    rows = without_defaults(runs, differences(runs))
    labels = [
        " ".join([run.id, *(f"{k}={v}" for k, v in row.items())])
        for run, row in zip(runs, rows, strict=True)
    ]
    more = len(labels) - MOST_LABELS
    kept = [
        plain_text(label if len(label) <= 90 else label[:89] + "…")
        for label in labels[:MOST_LABELS]
    ]
    if more > 0:
        kept[-1] += f" (and {more} more)"
    return kept + ["_nolegend_"] * max(0, more)


def plain_text(text: str) -> str:
    """Escape `$`, between which matplotlib reads a formula, and `_`, which hides a label."""
    return text.replace("$", r"\$").lstrip("_") or "run"
