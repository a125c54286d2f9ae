"""Writes `metrics.jsonl`: one line for each logged step, no step twice."""

import time
from collections.abc import Callable

from launcher.config.messages import describe_type
from launcher.errors import ConfigError
from launcher.hooks.line_file import LineFileHook, Row
from launcher.hooks.records import flatten, to_number
from launcher.hooks.view import Records, State, TrainerView
from launcher.process import ranks
from launcher.trackers.base import NO_METRICS


class JsonlHook(LineFileHook):
    """Collects the records of a step and appends them as one line before the next step.

    See `LineFileHook`. A resume drops the lines of steps after the checkpoint.

    Examples:
        >>> class Writing(Line):
        ...     def build_hooks(self):
        ...         return [LoggingHook(interval=1), JsonlHook()]
        >>> Writing(max_steps=2, device="cpu", workspace="written").train()
        >>> len(Path("written/metrics.jsonl").read_text().splitlines())
        2
    """

    key = "jsonl"
    name = "metrics.jsonl"

    def __init__(self, clock: Callable[[], float] = time.time):
        super().__init__()
        self._clock = clock
        self._saved: State = {}
        self._skipped: set[str] = set()

    def on_ready(self, trainer: TrainerView) -> None:
        super().on_ready(trainer)
        expected = self._saved.get("count", 0)
        if ranks.rank() == 0 and self._saved.get("run") == self._run() and self._count < expected:
            trainer.logger.error(
                "%s has %d of the %d lines that the checkpoint of step %d records; the others are"
                " lost.",
                self.path,
                self._count,
                expected,
                trainer.step,
            )

    def _run(self) -> str:
        return self.path.absolute().parent.name

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        # On all ranks, since reading a sharded tensor is collective.
        values = {name: to_number(value) for name, value in flatten(records).items()}
        name = next((name for name in NO_METRICS if name in values), None)
        if name:
            raise ConfigError(
                f"trainer.log: {name} is a key of every line; use another name, e.g. my/{name}."
            )
        numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        if ranks.rank() != 0:
            return
        for name, value in values.items():
            if value is not None and name not in numbers and name not in self._skipped:
                self._skipped.add(name)
                trainer.logger.warning(
                    "trainer.log: %s is %s, so it is not written; log a number, or use log_text.",
                    name,
                    describe_type(value),
                )
        if dry_run:
            trainer.logger.info("Would write to %s: %s", self.path, numbers)
            return
        self.on_before_step(trainer)
        if not self.rows or self.rows[-1]["step"] != trainer.step:
            self.rows.append(self._begin_line(trainer))
        self.rows[-1] |= numbers

    def _begin_line(self, trainer: TrainerView) -> Row:
        line = {"step": trainer.step, "time": self._clock(), "attempt": trainer.context.attempt}
        if trainer.samples is not None:
            line["samples"] = trainer.samples
            # A resume that begins with a new loader counts passes over it from zero.
            if trainer.state.num_epochs is not None:
                line["epoch"] = trainer.state.epoch
        return line

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        super().on_state_dict(trainer, state_dict)
        state_dict[self.key]["lines"] = {"count": self._count, "run": self._run()}

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        super().on_load_state_dict(trainer, state_dict)
        self._saved = state_dict.get(self.key, {}).get("lines", {})
        shared = trainer.context.shared
        if self.rows and shared is not None and shared.source is not None:
            self.rows[-1]["attempt"] = 0
