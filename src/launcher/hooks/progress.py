"""The progress of training: a bar on a terminal, plain lines elsewhere."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

from launcher.config.schema.matters_from import never
from launcher.hooks.records import format_records, show
from launcher.hooks.stats import StatsHook
from launcher.hooks.view import Stats, TrainerView
from launcher.process import ranks
from launcher.process.text_table import is_live_terminal
from launcher.rundir.logs import console, file_only
from launcher.types import PositiveInt

MARGIN = 4
"""Free columns, since a terminal echoes ^C behind the bar, and a wrapped line cannot be erased."""
MIN_WIDTH_OF_BAR = 80
"""Terminal width in columns from which a bar is drawn next to the percentage."""
ETA_REPORTS = 11
"""Newest reports that the remaining time is estimated from. A machine that is shared changes its
speed."""
REFRESH = 0.1
"""Minimum seconds between two drawings of the bar."""


class ProgressHook(StatsHook):
    """Shows a line each interval.

    `Step 100/1000: 10% loss 2.413 lr 0.001 19.5 steps/s eta 0:00:46 grad_norm 0.9121 data 0.0003s |
    records`

    Args:
        interval: in optimizer steps.
        with_records: add the records of `forward`.
        sync: show means over all ranks. Otherwise the means of rank 0.
        eta_warmup: number of first steps that do not count for the estimate, since they are slower.
        show_units: write `steps/s`, `s` and `GiB`.
        live: draw a bar. Default None: if standard output is a terminal that can redraw a line.

    Examples:
        >>> class Showing(Line):
        ...     def build_hooks(self):
        ...         return [ProgressHook(interval=10, with_records=True)]
        >>> Showing(max_steps=1, device="cpu").train()
    """

    changes_numbers = False
    provides = ()
    matters_from: ClassVar = {"*": never}

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
        super().__init__(interval, sync)
        self.with_records = with_records
        self.eta_warmup = eta_warmup
        self.show_units = show_units
        self.live = live
        self._clock = clock
        self._of_rank = ""
        self._bar: _Bar | None = None

    def on_ready(self, trainer: TrainerView) -> None:
        self._first = trainer.step
        self._times = deque[tuple[int, float]](maxlen=ETA_REPORTS)
        self._shows = ranks.rank() == 0
        is_of_rank = trainer.strategy.ranks.is_distributed and not self.sync
        self._of_rank = " (rank 0)" if is_of_rank else ""
        if trainer.state.is_at_end():
            trainer.logger.info(
                "Step %d of %d is done: nothing is left to train.", trainer.step, trainer.max_steps
            )
            return
        trainer.logger.info("Training from step %d to %d.", trainer.step, trainer.max_steps)
        self._warn_of_repeats(trainer)
        if self._shows and (is_live_terminal() if self.live is None else self.live):
            self._bar = _Bar(trainer.step, trainer.max_steps, self._clock)

    def on_after_train(self, trainer: TrainerView) -> None:
        # At the end too, since the first lines are out of sight by then.
        self._warn_of_repeats(trainer)

    def _warn_of_repeats(self, trainer: TrainerView) -> None:
        times = (trainer.state.num_epochs or 0) / trainer.max_steps
        if self._shows and times > 1:
            trainer.logger.warning(
                "A step has each training sample %.3g times: use a smaller batch.", times
            )

    def _eta(self, trainer: TrainerView) -> timedelta | None:
        """Estimate the time that is left, from the newest reports after warm-up."""
        state = trainer.state
        if state.step - self._first < self.eta_warmup:
            return None
        self._times.append((state.step, self._clock()))
        if state.is_at_end() or len(self._times) < 2:
            return None
        (first, then), (last, now) = self._times[0], self._times[-1]
        step_time = (now - then) / (last - first)
        seconds = step_time * (state.max_steps - state.step)
        if seconds < timedelta.max.total_seconds():
            return timedelta(seconds=int(seconds))
        return None

    def report_means(self, trainer: TrainerView, stats: Stats) -> None:
        if not self._shows:
            return
        parts = self.parts(stats, self._eta(trainer))
        step = trainer.step
        total = trainer.max_steps
        if self._bar is not None:
            self._bar.update(step, parts)
        line = f"Step {step:>{len(str(total))}}/{total}: {percent(step, total)} " + " ".join(parts)
        if self.with_records and stats.records:
            line += " | " + format_records(stats.records)
        if self._bar is None:
            trainer.logger.info(line)
        elif trainer.is_last_step:
            self.on_close(trainer)
            trainer.logger.info(line)
        else:
            file_only(trainer.logger, line)

    def parts(self, stats: Stats, eta: timedelta | None) -> list[str]:
        """Return the parts of a progress line, the most important first."""
        s, gib = ("s", "GiB") if self.show_units else ("", "")
        numbers = stats.numbers
        rates = stats.learning_rates
        parts = [f"loss {show(numbers['loss'], 4)}{self._of_rank}"]
        if len(set(rates.values())) == 1:
            parts.append(f"lr {next(iter(rates.values())):.3g}")
        else:
            parts += [f"lr/{name} {rate:.3g}" for name, rate in rates.items()]
        parts.append(self._speed(numbers["step_time"]))
        if eta is not None:
            parts.append(f"eta {eta}")
        if "grad_norm" in numbers:
            parts.append(f"grad_norm {show(numbers['grad_norm'], 4)}")
        parts.append(f"data {numbers['data_time']:.4f}{s}")
        if "max_memory" in numbers:
            parts.append(f"mem {numbers['max_memory']:#.3g}{gib}")
        return parts

    def _speed(self, seconds: float) -> str:
        per_second = 1 / max(seconds, 1e-9)
        if not self.show_units:
            return f"speed {_short(per_second)}"
        if seconds < 1:
            return f"{_short(per_second)} steps/s"
        return f"{_short(seconds)} s/step"

    def on_close(self, trainer: TrainerView) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def percent(step: int, total: int) -> str:
    """Return the rounded percentage, where only the last step is 100%."""
    rounded = (200 * step + total) // (2 * total)
    return f"{rounded if step >= total else min(rounded, 99)}%"


def fit_bar(step: int, total: int, parts: list[str], width: int, marks: str = "━╌") -> str:
    """Return the line of a bar in at most `width` columns. Parts that do not fit are left out."""
    line = f"{step}/{total} {percent(step, total)}"
    if width >= MIN_WIDTH_OF_BAR - MARGIN:
        done = round(16 * step / total)
        line = f"{step}/{total} {marks[0] * done}{marks[1] * (16 - done)} {percent(step, total)}"
    # The time that is left is what a narrow terminal should show next to the loss.
    for part in sorted(parts, key=lambda part: not part.startswith(("loss ", "eta "))):
        if len(line) + 1 + len(part) <= width:
            line += " " + part
    return line[:width]


class _Bar:
    """A line that is redrawn in place. Log records print above it; closing erases it."""

    def __init__(self, step: int, total: int, clock: Callable[[], float]):
        # Importing rich takes 0.1 s, and only a terminal needs it.
        from rich.live import Live

        self._line = (step, total, list[str]())
        self._clock = clock
        self._drawn_at = -REFRESH
        self._live = Live(self, console=console(), auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        marks = "#-" if options.ascii_only else "━╌"
        yield Text(fit_bar(*self._line, max(options.max_width - MARGIN, 10), marks), no_wrap=True)

    def update(self, step: int, parts: list[str]) -> None:
        self._line = (step, self._line[1], parts)
        if (now := self._clock()) - self._drawn_at >= REFRESH:
            self._drawn_at = now
            self._live.refresh()

    def close(self) -> None:
        self._live.stop()
