"""Traces some steps with torch's profiler."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from launcher.config.schema.matters_from import never
from launcher.hooks.base import BaseHook
from launcher.hooks.view import TrainerView
from launcher.process import ranks
from launcher.types import NonNegativeInt, PositiveInt


class ProfilerHook(BaseHook):
    """Profiles some steps, and logs the most expensive operations.

    It writes `profile/step-<first>-rank-<r>.json.gz`, for chrome://tracing or Perfetto.

    Args:
        start: number of steps of each attempt that are skipped first.
        steps: record this many steps.
        ranks: which ranks record.
        with_stack: record the source lines of the operations.
    """

    changes_numbers = False
    provides = ()
    matters_from: ClassVar = {"*": never}

    def __init__(
        self,
        start: NonNegativeInt = 10,
        steps: PositiveInt = 3,
        ranks: list[NonNegativeInt] | None = None,
        with_stack: bool = False,
    ):
        self.start = start
        self.steps = steps
        self.ranks = ranks or [0]
        self.with_stack = with_stack
        self._profile: Any = None

    def on_ready(self, trainer: TrainerView) -> None:
        if ranks.rank() in self.ranks:
            window = torch.profiler.schedule(
                skip_first=max(self.start - 1, 0),
                wait=0,
                warmup=min(self.start, 1),
                active=self.steps,
                repeat=1,
            )
            finish = partial(self._finish, trainer, trainer.step + self.start + 1)
            self._profile = torch.profiler.profile(
                schedule=window, on_trace_ready=finish, with_stack=self.with_stack
            )
            self._profile.start()

    def on_after_step(self, trainer: TrainerView) -> None:
        if self._profile is not None:
            self._profile.step()

    def on_close(self, trainer: TrainerView) -> None:
        # Training may have ended within the window.
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _finish(self, trainer: TrainerView, first: int, profile: torch.profiler.profile) -> None:
        is_on_gpu = trainer.device.type == "cuda"
        if is_on_gpu:
            torch.cuda.synchronize(trainer.device)
        folder = (trainer.workspace or Path()) / "profile"
        target = folder / f"step-{first:08d}-rank-{ranks.rank()}.json.gz"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(target))
        # A full disk must not end the training.
        except OSError as error:
            trainer.logger.error("The trace could not be written: %s.", error)
            return
        key = "self_device_time_total" if is_on_gpu else "self_cpu_time_total"
        table = profile.key_averages().table(sort_by=key, row_limit=10, max_name_column_width=40)
        trainer.logger.info("Profile of steps %d to %d: %s\n%s", first, trainer.step, target, table)
