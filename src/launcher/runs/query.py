"""The runs of a folder in a program or a notebook, as a data frame, as a picture, or compared."""

import io
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError, needing
from launcher.process.files import expand
from launcher.process.plural import plural
from launcher.runs.filters import select
from launcher.runs.find_runs import find_runs
from launcher.runs.look.differences import differences
from launcher.runs.look.plot import draw
from launcher.runs.look.run_groups import group_runs
from launcher.runs.look.series import LOSS, check_metrics
from launcher.runs.look.significance import TestOutcome, run_test
from launcher.runs.slurm_jobs import ask_queue
from launcher.runs.stored_run import StoredRun


class Drawing:
    """A picture, which a notebook shows. `figure` is matplotlib's."""

    def __init__(self, figure: Any):
        self.figure = figure

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.figure.savefig(data, format="png", dpi=100)
        return data.getvalue()

    def save(self, path: str | Path) -> None:
        """Write it. The name ends in .png, .svg or .pdf."""
        self.figure.savefig(path, dpi=150)


class Runs(list[StoredRun]):
    """The runs of a folder that match filters, as `python -m launcher.runs` lists them.

    They are read once.

    Args:
        outputs: the folder of the runs.
        filters: `model=gpt`, `val/loss<2`, part of a name, or the beginning of an id.

    Examples:
        >>> Path("outputs").mkdir()
        >>> Runs("outputs", "model=mlp", "val/loss<2")
        <0 runs in outputs>
    """

    def __init__(self, outputs: str | Path = "outputs", *filters: str):
        self.outputs = expand(outputs)
        if not self.outputs.is_dir():
            raise ConfigError(f"{self.outputs}: there is no such folder of runs.")
        runs = find_runs(self.outputs)
        ask_queue(runs)
        super().__init__(select(runs, filters))

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'run')} in {self.outputs}>"

    def rows(self) -> list[dict[str, Any]]:
        """Return `name`, `id`, `state`, `step`, differing keys, and newest metrics of each run."""
        rows = []
        for run, differing in zip(self, differences(self), strict=True):
            row: dict[str, Any] = {"name": run.name, "id": run.id, "state": run.state}
            row |= {"step": run.record.get("step")}
            row |= {key: run.settings.get(key, text) for key, text in differing.items()}
            rows.append(row | {name: newest.value for name, newest in run.metrics.items()})
        return rows

    def frame(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        with needing(
            "frame() needs pandas: pip install 'torch-launcher[notebooks]'; or use rows()."
        ):
            import pandas
        return pandas.DataFrame(self.rows())

    def plot(
        self, *metrics: str, over: str | None = None, smoothing: float | None = None
    ) -> Drawing:
        """Draw metrics (train/loss by default), as `python -m launcher.runs plot` does.

        Args:
            *metrics: names of metrics.
            over: a key, usually `seed`, for a band over its values instead of a curve for each run.
            smoothing: from 0 to below 1. Default None: by the number of points.
        """
        names = metrics or (LOSS,)
        check_metrics(self, names)
        groups = None if over is None else group_runs(self, over)
        return Drawing(draw(self, names, smoothing, groups))

    def test(self, key: str, metric: str = "val/loss", step: int | None = None) -> TestOutcome:
        """Test whether the values of a key make a difference over seeds, as `runs test` does."""
        return run_test(self, key, metric, step)
