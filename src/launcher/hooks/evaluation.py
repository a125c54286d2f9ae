"""Metrics on the validation set, every few steps and at the end, and then on the test set."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from launcher.checkpoint.find_checkpoint import find_checkpoint
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.data.counted_batches import counted
from launcher.errors import ConfigError, NonFiniteError
from launcher.hooks.base import BaseHook
from launcher.hooks.best import best_step, check_keeps_best
from launcher.hooks.interval import Interval
from launcher.hooks.metrics import Metrics, split_tables
from launcher.hooks.records import flatten, show
from launcher.hooks.sample_means import SizedBatches, measure_means
from launcher.hooks.view import Records, RunContext, State, TrainerView
from launcher.process import ranks, signals
from launcher.process.plural import plural
from launcher.rundir.folder import RunFolder
from launcher.types import NonNegativeInt, PositiveInt

Loader = Callable[[], Iterable[object] | None]
TEST = "hooks.evaluation.test"


class EvaluationHook(BaseHook):
    """Logs `{"val": {"loss": ..., ...}}` with the records of `forward`, as means over the samples.

    It does not change training, since random state and the model's mode are restored. A signal ends
    an evaluation between two batches, and the run repeats it when it resumes.

    Args:
        interval: in optimizer steps, or in epochs (`1epoch`). With 0, it evaluates at the last step
            only.
        loader: function that returns an iterable of this rank's validation batches, or None if
            there are none. Of a mapping of such functions, each logs `{"val": {name: {...}}}`.
            Default None: the run's own loader.
        max_samples: use the first n samples of the run's validation set, over all ranks. Default
            None: all.
        at_start: also evaluate before the first step.
        metrics: further metrics by name, of torchmetrics for instance, computed from the `logits`
            and `targets` that forward records in evaluation. One with two dimensions, such as a
            confusion matrix, is logged as an image.
        test: once training is complete, evaluate the test set on the weights of the best or of the
            last checkpoint, and log `{"test": {...}}` at the last step. Default None: never.
    Raises:
        ValueError: `max_samples` with a `loader` of your own.

    Examples:
        >>> class Evaluating(Line):
        ...     def build_hooks(self):
        ...         held_out = [(torch.zeros(4, 1), torch.ones(4, 1))]
        ...         return [EvaluationHook(interval=1, loader=lambda: held_out)]
        >>> trainer = Evaluating(max_steps=1, device="cpu")
        >>> trainer.train()
        >>> list(trainer.state.metrics)
        ['val/loss']
    """

    changes_numbers = False
    provides = ("evaluation", "val/")
    at_the_end = ("test",)
    needs: ClassVar = {"test=best": "checkpointing"}

    def __init__(
        self,
        interval: NonNegativeInt | str = 100,
        loader: Loader | Mapping[str, Loader] | None = None,
        max_samples: PositiveInt | None = None,
        at_start: bool = True,
        metrics: dict[str, Any] | None = None,
        test: Literal["best", "last"] | None = None,
    ):
        if loader is not None and max_samples is not None:
            raise ValueError(
                "max_samples limits the run's own validation set; limit your loader instead."
            )
        self.interval = interval
        self.loader = loader
        self.max_samples = max_samples
        self.at_start = at_start
        self.test = test
        self._interval = Interval(interval, "hooks.evaluation.interval")
        self.metrics = Metrics(metrics or {})
        self._batches: dict[str, SizedBatches] = {}
        self._test_batches: dict[str, SizedBatches] = {}
        self._done_at = -1

    def open(self, context: RunContext) -> bool:
        """Make the loaders; return whether there is a validation set."""
        loaders = self.loader if isinstance(self.loader, Mapping) else {"": self.loader}
        if self.loader is None and context.val_loader is not None:
            limit = {} if self.max_samples is None else {"max_samples": self.max_samples}
            unnamed = partial(context.val_loader, **limit)
            loaders = {"": unnamed} | {n: partial(unnamed, name=n) for n in context.val_names}
        made = {name: loader() for name, loader in loaders.items() if loader is not None}
        self._batches = {n: counted(batches) for n, batches in made.items() if batches is not None}
        return bool(self._batches)

    def on_before_train(self, trainer: TrainerView) -> None:
        self._interval.check(trainer)
        if not self.open(trainer.context):
            trainer.logger.info("There is no validation set, so there are no val/ metrics.")
        if self.test is not None:
            self._open_test(trainer)

    def _open_test(self, trainer: TrainerView) -> None:
        loader = trainer.context.test_loader
        batches = None if loader is None else loader()
        if batches is None:
            raise ConfigError(
                f"{TEST}={self.test}: the data have no test set; set data.test_dataset, or leave it"
                " out."
            )
        if self.test == "best":
            check_keeps_best(trainer.state.best, TEST)
        self._test_batches = {"": counted(batches)}

    def on_ready(self, trainer: TrainerView) -> None:
        is_due = trainer.state.is_at_end() or self._interval.is_due(trainer, trainer.step)
        missed = trainer.step > 0 and is_due and self._done_at != trainer.step
        if missed or (trainer.step == 0 and self.at_start):
            # The step may have no checkpoint of this run.
            was_at_end = trainer.state.is_at_end()
            self._evaluate(trainer)
            trainer.step_has_changed = missed and self._done_at == trainer.step
            if trainer.state.is_at_end() and not was_at_end:
                trainer.fire("on_last_step")

    def on_after_step(self, trainer: TrainerView) -> None:
        if self._interval.is_due(trainer, trainer.state.step):
            self._evaluate(trainer)

    def on_last_step(self, trainer: TrainerView) -> None:
        if self._test_batches:
            # The line of this step becomes part of the checkpoint, so an attempt that repeats the
            # evaluation of the test set writes the line again, and not a second one.
            trainer.log({})
        if self._done_at != trainer.step:
            self._evaluate(trainer)

    def _evaluate(self, trainer: TrainerView) -> None:
        if not self._batches:
            return
        metrics = self._measure_between_events(trainer, self._batches, trainer.step)
        if metrics is None:
            trainer.stop_at_this_boundary()
            return
        self._done_at = trainer.step
        flat = self._log(trainer, metrics, "val")
        for key in (f"val/{name}/loss" if name else "val/loss" for name in self._batches):
            if not math.isfinite(flat[key]):
                self._report_non_finite(trainer, key, flat[key])

    def on_after_train(self, trainer: TrainerView) -> None:
        """Evaluate the test set. The run is completed only then."""
        if not self._test_batches:
            return
        step = trainer.step if self.test == "last" else best_step(trainer.state.best, TEST)
        if step != trainer.step:
            trainer.logger.info("The test set is evaluated on the best checkpoint, step %d.", step)
            _load_weights(trainer, step)
        metrics = self._measure_between_events(trainer, self._test_batches, step)
        if step != trainer.step:
            _load_weights(trainer, trainer.step)
        if metrics is None:
            raise signals.SignalExit(ranks.maximum(signals.first_signal()))
        self._log(trainer, metrics, "test")

    def _measure_between_events(
        self, trainer: TrainerView, batches: Mapping[str, SizedBatches], step: int
    ) -> Records | None:
        """Call `measure` between the events that let hooks change the weights."""
        trainer.fire("on_evaluation_start")
        try:
            with trainer.context.times.measure("evaluating"):
                return self.measure(trainer, batches, step)
        finally:
            trainer.fire("on_evaluation_end")

    def _log(
        self, trainer: TrainerView, metrics: Records, split: Literal["val", "test"]
    ) -> dict[str, float]:
        """Log the metrics, and return the numbers by flat name."""
        numbers, tables = split_tables(metrics)
        flat = flatten(numbers, f"{split}/")
        values = " ".join(f"{key} {show(flat[key])}" for key in flat)
        trainer.logger.info("Step %d: %s", trainer.step, values)
        trainer.log({split: numbers})
        if tables:
            images = {key: table.draw() for key, table in flatten(tables).items()}
            trainer.log_images({split: images})
        return flat

    def measure(
        self,
        trainer: TrainerView,
        batches: Mapping[str, SizedBatches] | None = None,
        step: int | None = None,
    ) -> Records | None:
        """Return the metrics by name of the loader, or None if a signal came on a rank.

        A value with two dimensions is a `Matrix`. By default the loaders are those that `open` has
        made, and the step is the trainer's.
        """
        metrics: Records = {}
        for name, of_loader in (batches or self._batches).items():
            self.metrics.reset(trainer.device)
            of_weights = trainer.step if step is None else step
            measured = measure_means(trainer, of_loader, of_weights, self.metrics)
            if measured is None:
                return None
            metrics |= {name: measured} if name else measured
        return metrics

    def _report_non_finite(self, trainer: TrainerView, key: str, value: float) -> None:
        trainer.logger.warning("Step %d: %s is %s.", trainer.step, key, value)
        if trainer.is_last_step and trainer.step > 0:
            skipped = trainer.state.skipped_in_row
            raise NonFiniteError(
                f"Training ended with {key}={value} at step {trainer.step}"
                + (f", after {plural(skipped, 'skipped update')} in a row" if skipped else "")
                + ". This state is not saved. Lower the learning rate or check the data."
            )

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        state_dict["evaluation"] = {"done_at": self._done_at}

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        self._done_at = state_dict.get("evaluation", {}).get("done_at", -1)


def _load_weights(trainer: TrainerView, step: int) -> None:
    """Load the weights of a checkpoint of the run, and the tensors of hooks, such as averages."""
    root = RunFolder(trainer.workspace or Path()).checkpoints
    path = ranks.on_main(lambda: str(find_checkpoint(root, step, TEST, hashes=False)))
    stored = StoredCheckpoint(Path(path))
    trainer.strategy.load_weights(stored)
    for hook in trainer.hooks:
        hook.load_tensors(trainer, stored)
