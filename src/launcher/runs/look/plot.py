"""Draw metrics of runs as a PNG.

Training is smoothed over raw values, validation is drawn as dots, and restarts are dotted lines.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError, needing
from launcher.process.argument_parser import Parser, path_argument
from launcher.process.files import save_figure
from launcher.rundir.history import is_wide
from launcher.runs.act.repeat_command import select_runs
from launcher.runs.find_runs import RUN_HELP
from launcher.runs.look.differences import differences, override_text
from launcher.runs.look.run_groups import OVER_HELP, Group, group_runs
from launcher.runs.look.series import LOSS, VALIDATION, band, check_metrics, smooth, smoothing_of
from launcher.runs.stored_run import StoredRun, StoredRuns

MAX_POINTS = 4000
MAX_LABELS = 12
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's palette, whose colours colour-blind people can distinguish."""
DOTS = {"marker": "o", "ms": 3.5, "mfc": "white"}
STYLE = {
    "font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": "#9aa2ab",
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#e8eaed", "axes.labelcolor": "#40474f",
    "xtick.color": "#6a737d", "ytick.color": "#6a737d", "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "lines.linewidth": 1.5, "legend.frameon": False, "figure.facecolor": "white",
}  # fmt: skip


def add_arguments(parser: Parser) -> None:
    parser.argument("runs", "RUN", f"{RUN_HELP}; or a filter: model=mlp, val/loss<2", nargs="+")
    parser.argument(
        "--metric", "KEY,KEY", "a panel for each (default: train/loss with val/loss)", default=LOSS
    )
    parser.argument(
        "--over", "KEY", f"{OVER_HELP}; a band of one standard deviation around the mean"
    )
    parser.argument(
        "--smoothing",
        "W",
        "from 0 (none) to below 1 (default: 0.9, and less for fewer than 100 points)",
        type=float,
    )
    parser.argument(
        "-o --output",
        "FILE",
        "a .png, .svg or .pdf (default: plot.png in the folder of the run or runs)",
        type=path_argument,
    )


def run(arguments: argparse.Namespace) -> int:
    runs = select_runs(arguments.runs, arguments.outputs)
    metrics = [key.strip() for key in arguments.metric.split(",") if key.strip()]
    check_metrics(runs, metrics)
    groups = None if arguments.over is None else group_runs(runs, arguments.over)
    folder = runs[0].folder.path if len(runs) == 1 else arguments.outputs
    figure = draw(runs, metrics, arguments.smoothing, groups)
    save(figure, arguments.output or folder / "plot.png")
    return 0


def save(figure: Any, output: Path) -> None:
    if output.suffix[1:].lower() not in figure.canvas.get_supported_filetypes():
        raise ConfigError(f"--output={output}: the name should end in .png, .svg or .pdf.")
    try:
        save_figure(figure, output)
    except OSError as error:
        raise ConfigError(f"--output={output}: cannot be written ({error.strerror}).") from error
    print(output)


def draw(
    runs: StoredRuns,
    metrics: Sequence[str],
    smoothing: float | None = None,
    groups: Sequence[Group] | None = None,
) -> object:
    """Draw a panel for each metric, with a curve for each run, or a band for each of `groups`."""
    if smoothing is not None and not 0 <= smoothing < 1:
        raise ConfigError(f"--smoothing={smoothing:g}: should be a number from 0 to below 1.")
    with needing("plot needs matplotlib: pip install 'torch-launcher[pictures]'."):
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    shown = runs if groups is None else [run for group in groups for run in group.runs]
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(9, 4.2 * len(metrics)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(metrics), 1, squeeze=False)[:, 0]
        for drawn, metric in zip(panels, metrics, strict=True):
            panel = Panel(drawn, metric, smoothing)
            panel.set_up(shown)
            if groups is None:
                panel.draw_runs(runs)
            else:
                panel.draw_bands(groups)
        if len(runs) == 1 and groups is None:
            figure.suptitle(plain_text(runs[0].label), fontsize=9, color="#6a737d")
        else:
            panels[0].legend(fontsize=8)
    return figure


@dataclass
class Panel:
    """A metric of some runs. The training loss has the validation loss next to it, as dots."""

    drawn: Any
    metric: str
    smoothing: float | None
    is_log: bool = False

    @property
    def dots(self) -> str | None:
        return "val/loss" if self.metric == LOSS else None

    def set_up(self, runs: StoredRuns) -> None:
        """Set title and axes. The scale is logarithmic if the values span orders of magnitude."""
        names = [self.metric, self.dots] if self.dots else [self.metric]
        curves = [run.history.curve(name) for run in runs for name in names]
        values = [y for curve in curves for y in curve.y if math.isfinite(y)]
        self.is_log = is_wide(values)
        has_dots = any(self.dots in run.history.metrics for run in runs)
        title = "loss (line: train, dots: val)" if has_dots else self.metric
        self.drawn.set_title(title, fontweight="bold")
        self.drawn.set_xlabel("step")
        if self.is_log:
            self.drawn.set_yscale("log", nonpositive="mask")

    def draw_runs(self, runs: StoredRuns) -> None:
        for run, label, color in zip(runs, labels_of(runs), cycle(COLORS), strict=False):
            self._draw_curve(run, {"color": color, "label": label})
            if self.dots:
                points = run.history.curve(self.dots)
                self.drawn.plot(points.x, points.y, color=color, ls="none", **DOTS | {"ms": 4})
            for position in run.history.restarts():
                self.drawn.axvline(position, color=color, ls=":", lw=1)

    def _draw_curve(self, run: StoredRun, style: dict[str, object]) -> None:
        """Draw training smoothed over raw values, validation as dots, other values as they are."""
        curve = run.history.curve(self.metric)
        if self.metric.startswith(VALIDATION):
            self.drawn.plot(curve.x, curve.y, **DOTS, **style)
            return
        shown = smooth(curve, self.metric, self.smoothing, self.is_log).thin(MAX_POINTS)
        self.drawn.plot(shown.x, shown.y, **style)
        if smoothing_of(curve, self.metric, self.smoothing):
            raw = curve.thin(MAX_POINTS)
            self.drawn.plot(raw.x, raw.y, color=style["color"], alpha=0.22, lw=0.8)

    def draw_bands(self, groups: Sequence[Group]) -> None:
        """Draw the mean of each group, and one standard deviation around it."""
        for group, color in zip(groups, cycle(COLORS), strict=False):
            for metric in filter(None, (self.metric, self.dots)):
                curves = [run.history.curve(metric) for run in group.runs]
                shown = band(
                    [smooth(curve, metric, self.smoothing, self.is_log) for curve in curves],
                    self.is_log,
                )
                marks = DOTS if metric.startswith(VALIDATION) else {}
                label = label_of(group, shown.count) if metric == self.metric else None
                self.drawn.plot(shown.x, shown.mean, color=color, label=label, **marks)
                self.drawn.fill_between(
                    shown.x, shown.low, shown.high, color=color, alpha=0.18, lw=0
                )


def label_of(group: Group, count: int) -> str:
    """Label a group by what distinguishes it, and by how many of its runs the band has."""
    name = group.label or group.runs[0].name
    total = len(group.runs)
    return plain_text(f"{name} (n={count})" if count == total else f"{name} (n={count} of {total})")


def labels_of(runs: StoredRuns) -> list[str]:
    """Label runs by the id and the differing keys. Of many runs, only the first are labelled."""
    pairs = zip(runs, differences(runs), strict=True)
    is_one = len({run.id for run in runs}) == len(runs)
    names = (f"{run.id if is_one else run.label} {override_text(row)}" for run, row in pairs)
    labels = [name.rstrip()[:90] for name in names]
    more = max(0, len(labels) - MAX_LABELS)
    return [*map(plain_text, labels[:MAX_LABELS]), *["_nolegend_"] * more]


def plain_text(text: str) -> str:
    """Escape `$`, between which matplotlib reads a formula, and `_`, which hides a label."""
    return text.replace("$", r"\$").lstrip("_") or "run"
