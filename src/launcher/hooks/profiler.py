"""Traces some steps with torch's profiler."""

from pathlib import Path
from typing import Any, ClassVar

import torch

from launcher.config.matters_from import never
from launcher.hooks.base import BaseHook, TrainerView
from launcher.process import ranks
from launcher.rundir.folder import place_of
from launcher.types import NonEmptyText, NonNegativeInt, PositiveInt


class ProfilerHook(BaseHook):
    """Profiles some steps, and logs the most expensive operations.

    It writes `profile/step-<first>-rank-<r>.json.gz`, for chrome://tracing or Perfetto.

    Args:
        start: number of steps of each attempt that are skipped first.
        steps: record this many steps.
        ranks: which ranks record.
        record_shapes: record the shapes of the operations' inputs.
        profile_memory: record memory allocations.
        with_stack: record the source lines of the operations.
        path: the folder, relative to the workspace. Outside it, the run's files are in
            `<path>/<name>/<id>`.
    """

    matters_from: ClassVar = {"*": never}

    def __init__(
        self,
        start: NonNegativeInt = 10,
        steps: PositiveInt = 3,
        ranks: list[NonNegativeInt] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        path: NonEmptyText = "profile",
    ):
        self.start, self.steps, self.ranks, self.path = start, steps, ranks or [0], Path(path)
        self._options = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
        }
        self._profile: Any = None
        self._step: Any = None
        self._first = 0

    def on_ready(self, trainer: TrainerView) -> None:
        self._first = trainer.step + self.start + 1

    def on_before_step(self, trainer: TrainerView) -> None:
        if trainer.step == self._first and ranks.rank() in self.ranks:
            self._profile = torch.profiler.profile(**self._options)  # type: ignore[arg-type]
            self._profile.start()
        if self._profile is not None:
            self._step = torch.profiler.record_function(f"step {trainer.step}")
            self._step.__enter__()

    def on_after_step(self, trainer: TrainerView) -> None:
        if self._profile is None:
            return
        self._end_step()
        if trainer.step == self._first + self.steps - 1 or trainer.is_last_step:
            self._finish(trainer)

    def on_close(self, trainer: TrainerView) -> None:
        # Training was stopped or failed within the window.
        if self._profile is not None:
            self._finish(trainer)

    def _end_step(self) -> None:
        """End a step's record, which a later profile would write to freed memory."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _finish(self, trainer: TrainerView) -> None:
        self._end_step()
        profile, self._profile = self._profile, None
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        profile.stop()
        folder = place_of(trainer.workspace, self.path)
        target = folder / f"step-{self._first:08d}-rank-{ranks.rank()}.json.gz"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(target))
        # A full disk must not end the training.
        except OSError as error:
            trainer.logger.error("The trace could not be written: %s.", error)
            return
        key = "self_device_time_total" if trainer.device.type == "cuda" else "self_cpu_time_total"
        table = profile.key_averages().table(sort_by=key, row_limit=10, max_name_column_width=40)
        trainer.logger.info(
            "Profile of steps %d to %d: %s\n%s", self._first, trainer.step, target, table
        )
