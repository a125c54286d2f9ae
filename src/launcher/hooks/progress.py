"""How far training is: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from launcher.hooks.base import TrainerView
from launcher.hooks.records import format_records
from launcher.hooks.stats import Stats, StatsHook
from launcher.run import ranks
from launcher.types import PositiveInt


class ProgressHook(StatsHook):
    """`Step 100/1000: step 0.0512s data 0.0003s eta 0:00:46 loss 2.4131 grad_norm 0.9121 lr_0 1.00e-03 | records`

    Args:
        interval: in optimizer steps.
        with_records: add what `forward` records.
        sync: means over all ranks; else those of rank 0.
        eta_warmup: steps that do not count for the estimate, since the first ones are slower.
        show_units: write `s` and `GiB`.
        live: a bar that moves, on a terminal; None: where standard output is one.
    """

    def __init__(
        self,
        interval: PositiveInt = 1,
        with_records: bool = False,
        sync: bool = False,
        eta_warmup: PositiveInt = 10,
        show_units: bool = True,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(self._show, interval, sync)
        self.with_records, self.eta_warmup, self.show_units, self.live = with_records, eta_warmup, show_units, live
        self._clock = clock
        self._bar: Any = None

    def on_ready(self, trainer: TrainerView) -> None:
        self._first = trainer.step
        self._timed_from: tuple[int, float] | None = None
        self._shows = ranks.rank() == 0
        if self._shows and (sys.stdout.isatty() if self.live is None else self.live):
            self._bar = _Bar(trainer.step, trainer.max_steps)
        trainer.logger.info("Training from step %d to %d.", trainer.step, trainer.max_steps)

    def on_after_step(self, trainer: TrainerView) -> None:
        if self._timed_from is None and trainer.step - self._first >= self.eta_warmup:
            self._timed_from = (trainer.step, self._clock())
        super().on_after_step(trainer)

    def _eta(self, trainer: TrainerView) -> timedelta | None:
        if self._timed_from is None or trainer.step == self._timed_from[0]:
            return None
        step, then = self._timed_from
        each = (self._clock() - then) / (trainer.step - step)
        return timedelta(seconds=int(each * (trainer.max_steps - trainer.step)))

    def _show(self, trainer: TrainerView, stats: Stats) -> None:
        if not self._shows:
            return
        line = self.line(trainer.step, trainer.max_steps, stats, self._eta(trainer))
        if self._bar is not None:
            self._bar.update(trainer.step, line.split(": ", 1)[1])
        else:
            trainer.logger.info(line)

    def line(self, step: int, max_steps: int, stats: Stats, eta: timedelta | None) -> str:
        s, gib = ("s", "GiB") if self.show_units else ("", "")
        parts = [f"step {stats.step_time:.4f}{s}", f"data {stats.data_time:.4f}{s}"]
        if eta is not None:
            parts.append(f"eta {eta}")
        if stats.max_memory is not None:
            parts.append(f"mem {stats.max_memory:#.3g}{gib}")
        parts.append(f"loss {stats.loss:.4f}")
        if stats.grad_norm is not None:
            parts.append(f"grad_norm {stats.grad_norm:.4f}")
        parts += [f"lr_{i} {rate:.2e}" for i, rate in enumerate(stats.learning_rates.values())]
        text = f"Step {step:>{len(str(max_steps))}}/{max_steps}: " + " ".join(parts)
        if self.with_records and stats.records:
            text += " | " + format_records(stats.records)
        return text

    def on_close(self, trainer: TrainerView) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _Bar:
    """A line that is redrawn in place; log records print above it."""

    def __init__(self, step: int, max_steps: int):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # 0.1 s, on a terminal alone

        from launcher.run.logs import console

        self._progress = Progress(
            BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[line]}"), console=console()
        )
        self._task = self._progress.add_task("train", total=max_steps, completed=step, line="")
        self._progress.start()

    def update(self, step: int, line: str) -> None:
        self._progress.update(self._task, completed=step, line=line)

    def close(self) -> None:
        self._progress.stop()
