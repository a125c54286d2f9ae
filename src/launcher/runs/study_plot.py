"""A hyperparameter search as a picture: history, importances, Pareto front, parallel coordinates."""

import math
from collections.abc import Sequence
from typing import Any

from launcher.config.direction import ranked
from launcher.config.messages import as_typed
from launcher.errors import ConfigError
from launcher.run.history import is_wide
from launcher.runs.plot import COLORS, STYLE, plain_text
from launcher.runs.study import StoredStudy

STATE_COLORS = {"completed": COLORS[0], "pruned": COLORS[4], "failed": COLORS[1]}
OTHER = "#afb8c1"
MOST_PARAMS = 8


def draw_study(study: StoredStudy) -> Any:
    """
    Raises:
        ConfigError: matplotlib is not installed, or no trial has a value.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plot needs matplotlib: pip install 'torch-launcher[pictures]'.") from error
    if not any(math.isfinite(trial.values[0]) for trial in study.trials):
        raise ConfigError(f"{study.folder}: no trial has a value of {study.objectives[0]} yet.")
    panels = [draw_history, draw_importances, draw_parallel]
    if len(study.objectives) > 1:
        panels.insert(1, draw_front)
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(9, 3.6 * len(panels)), layout="constrained")
        FigureCanvasAgg(figure)
        for panel, draw in zip(figure.subplots(len(panels), 1), panels, strict=True):
            draw(panel, study)
        figure.suptitle(f"{plain_text(study.folder.name)}: {len(study.trials)} trials", fontsize=9, color="#6a737d")
    return figure


def draw_history(panel: Any, study: StoredStudy) -> None:
    trials = [trial for trial in study.trials if math.isfinite(trial.values[0])]
    for state in dict.fromkeys(trial.state for trial in trials):
        of_state = [trial for trial in trials if trial.state == state]
        x, y = [trial.number for trial in of_state], [trial.values[0] for trial in of_state]
        panel.plot(x, y, ls="none", marker="o", ms=4.5, color=STATE_COLORS.get(state, OTHER), label=state)
    numbers = [trial.number for trial in study.trials]
    panel.plot(numbers, study.best_so_far(), drawstyle="steps-post", color="#24292f", lw=1.2, label="best")
    if is_wide([trial.values[0] for trial in trials]):
        panel.set_yscale("log")
    panel.set(title=plain_text(study.objectives[0]), xlabel="trial")
    panel.legend(fontsize=8)


def draw_front(panel: Any, study: StoredStudy) -> None:
    """The first two objectives of completed trials."""
    done = [trial for trial in study.trials if trial.is_completed]
    front = sorted(study.front, key=lambda trial: trial.values[0])
    for trials, style in ((done, {"color": OTHER}), (front, {"color": COLORS[0], "label": "Pareto front"})):
        x, y = [trial.values[0] for trial in trials], [trial.values[1] for trial in trials]
        panel.plot(x, y, ls="none", marker="o", ms=5, **style)
    names = [f"{plain_text(n)} ({d})" for n, d in zip(study.objectives, study.directions, strict=True)]
    panel.set(title="Pareto front", xlabel=names[0], ylabel=names[1])


def draw_importances(panel: Any, study: StoredStudy) -> None:
    step = study.common_step
    panel.set(title="importance" if step is None else f"importance for the value at step {step}", xlim=(0, 1))
    shares = study.importances()
    if not shares:
        panel.text(0.5, 0.5, "needs Optuna and more trials", ha="center", va="center")
        panel.set_yticks([])
        return
    bars = panel.barh([plain_text(key) for key in shares], list(shares.values()), color=COLORS[0])
    panel.bar_label(bars, [f"{share:.0%}" for share in shares.values()], padding=4, fontsize=8.5)
    panel.invert_yaxis()
    panel.grid(False)


def draw_parallel(panel: Any, study: StoredStudy) -> None:
    """A line for each trial through its values; better trials are darker. Each axis has the values that were tried."""
    keys = study.params[:MOST_PARAMS]
    trials = [trial for trial in study.trials if math.isfinite(trial.values[0])]
    trials = ranked(trials, lambda trial: trial.values[0], study.mode)
    columns = [[trial.params.get(key, "-") for trial in trials] for key in keys]
    columns.append([trial.values[0] for trial in trials])
    places = [_places(column) for column in columns]
    for rank, trial_places in reversed(list(enumerate(zip(*places, strict=True)))):
        shade = 0.15 + 0.75 * rank / max(1, len(trials) - 1)
        style = {"color": str(shade), "lw": 0.9} if rank else {"color": COLORS[0], "lw": 1.6}
        panel.plot(range(len(columns)), trial_places, **style)
    for index, column in enumerate(columns):
        panel.axvline(index, color="#9aa2ab", lw=0.8)
        for place, text in _ends(column):
            panel.text(index + 0.02, place, plain_text(text), fontsize=8, va="center")
    names = [plain_text(name) for name in (*keys, study.objectives[0])]
    panel.set(title="parallel coordinates (blue: the best)", xticks=range(len(columns)), xticklabels=names, yticks=[])
    panel.grid(False)


def _is_numeric(column: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in column)


def _is_log(column: Sequence[Any]) -> bool:
    return _is_numeric(column) and min(column) > 0 and max(column) / min(column) >= 30


def _places(column: Sequence[Any]) -> list[float]:
    """Where each value is on its axis, from 0 to 1."""
    if not _is_numeric(column):
        words = sorted(set(map(as_typed, column)))
        return [words.index(as_typed(value)) / max(1, len(words) - 1) for value in column]
    values = [math.log(value) for value in column] if _is_log(column) else [float(value) for value in column]
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.5 for value in values]


def _ends(column: Sequence[Any]) -> list[tuple[float, str]]:
    """The texts of an axis: all words, or the least and the greatest number."""
    texts = [f"{value:.3g}" if isinstance(value, float) else as_typed(value) for value in column]
    pairs = dict(zip(_places(column), texts, strict=True))
    return sorted(pairs.items()) if not _is_numeric(column) else [min(pairs.items()), max(pairs.items())]
