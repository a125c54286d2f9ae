"""Pictures of a hyperparameter search, drawn by Optuna."""

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from launcher.errors import ConfigError
from launcher.rundir.history import is_wide
from launcher.runs.stored_study import StoredStudy


def draw_study(study: StoredStudy) -> Iterator[tuple[str, object]]:
    """Yield the name of each picture, and its figure.

    Paused and pruned trials count by their values so far, in importances by the common step.
    """
    try:
        import matplotlib
        from matplotlib import pyplot
    except ImportError as error:
        raise ConfigError(
            "plot needs matplotlib: pip install 'torch-launcher[pictures]'."
        ) from error

    objective = study.goal.objectives[0]
    if not any(math.isfinite(trial.values(study.goal)[0]) for trial in study.trials):
        raise ConfigError(f"{study.folder}: no trial has a value of {objective} yet.")
    for name, draw in pictures(study).items():
        # Optuna sets a style for the whole process, and cuts long labels of parallel coordinates.
        with (
            warnings.catch_warnings(),
            matplotlib.rc_context({"backend": "agg", "savefig.bbox": "tight"}),
        ):
            warnings.simplefilter("ignore")
            axes = draw()
            figure = (axes if not hasattr(axes, "flat") else axes.flat[0]).figure
            yield name, figure
            pyplot.close(figure)


def pictures(study: StoredStudy) -> dict[str, Callable[[], Any]]:
    from optuna.visualization import matplotlib as optuna_plots

    objectives, step = list(study.goal.objectives), study.common_step
    objective = objectives[0]
    now = study.as_optuna()
    of_first: dict[str, Any] = {"target_name": objective}
    if len(objectives) > 1:
        of_first["target"] = lambda trial: trial.values[0]

    def history() -> object:
        axes = optuna_plots.plot_optimization_history(now, **of_first)
        if is_wide([trial.values[0] for trial in now.trials if trial.values]):
            axes.set_yscale("log")
        return axes

    def importances() -> Any:
        axes = optuna_plots.plot_param_importances(study.as_optuna(step, 0), target_name=objective)
        if step is not None:
            axes.set_title(f"Importances for the value at step {step}")
        return axes

    drawn: dict[str, Callable[[], object]] = {"history": history}
    if len(objectives) > 1:
        drawn["front"] = lambda: optuna_plots.plot_pareto_front(now, target_names=objectives)
    else:
        drawn["curves"] = lambda: optuna_plots.plot_intermediate_values(now)
    drawn["importances"] = importances
    drawn["parallel"] = lambda: optuna_plots.plot_parallel_coordinate(now, **of_first)
    return drawn
