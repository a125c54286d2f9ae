"""Metrics on the validation set, every few steps and at the end."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from launcher.errors import TrainingError
from launcher.hooks.base import BaseHook, RunContext, TrainerView
from launcher.hooks.beside import Beside
from launcher.hooks.interval import Interval
from launcher.hooks.matrices import split_matrices
from launcher.hooks.metrics import Metrics
from launcher.hooks.records import flatten, show
from launcher.hooks.sample_means import ChunkOrder, SampleMeans
from launcher.process import signals
from launcher.process.times import Times
from launcher.types import NonNegativeInt, PositiveInt

Loader = Callable[[], Iterable[object] | None]


class EvaluationHook(BaseHook):
    """Logs `{"val": {"loss": ..., ...}}` with the records of `forward`, as means over the samples.

    A named loader logs `{"val": {name: {...}}}`.

    It does not change training, since random state and the model's mode are restored. A signal ends
    an evaluation between two batches, and the run repeats it when it resumes.

    Args:
        interval: interval in optimizer steps, or in epochs (`1epoch`). With 0, it evaluates at the
            last step only.
        loader: function that returns an iterable of this rank's validation batches, or None if
            there are none. It may be a mapping of several such functions by name. Default None: the
            run's own loader.
        max_samples: use the first n samples of the run's validation set, over all ranks. Default
            None: all.
        at_start: also evaluate before the first step.
        metrics: further metrics by name, of torchmetrics for instance, computed from the `logits`
            and `targets` that forward records in evaluation. One with two dimensions, such as a
            confusion matrix, is logged as a matrix.
        where: with `process`, another process evaluates the checkpoint of a step that is due, while
            training continues. Its values are logged under that step when they come (see
            `launcher.hooks.beside`). The evaluations before the first step and after the last are
            still made here. With `job`, each such checkpoint is evaluated by a job of SLURM.
        device: of that process or job: cpu, cuda, cuda:1. Default None: the device of rank 0.
        dispatch: settings of `dispatch=slurm` for these jobs. Default None: its defaults.
    Raises:
        ValueError: `max_samples` with a `loader` of your own.
        ConfigError: there is no such device.
    """

    needs: ClassVar = {"where=process": "checkpointing", "where=job": "checkpointing"}

    def __init__(
        self,
        interval: NonNegativeInt | str = 100,
        loader: Loader | Mapping[str, Loader] | None = None,
        max_samples: PositiveInt | None = None,
        at_start: bool = True,
        metrics: dict[str, Any] | None = None,
        where: Literal["inline", "process", "job"] = "inline",
        device: str | None = None,
        dispatch: dict[str, Any] | None = None,
    ):
        if loader is not None and max_samples is not None:
            raise ValueError(
                "max_samples limits the run's own validation set; limit your loader instead."
            )
        self.interval, self.loader, self.max_samples, self.at_start = (
            interval,
            loader,
            max_samples,
            at_start,
        )
        self._interval = Interval(interval, "hooks.evaluation.interval")
        self.metrics = Metrics(metrics or {})
        self._batches: dict[str, Iterable[object]] = {}
        self._done_at = -1
        self._times = Times()
        self.where = where
        self._beside = Beside("hooks.evaluation", where, device, dispatch)
        self._is_composed = self._is_own = False

    def bind(self, context: RunContext) -> None:
        self._times, self._is_composed = context.times, "config.yaml" in context.texts
        self._is_own, self._beside.check_lock = self.loader is not None, context.check_lock
        if self.loader is None and context.val_loader is not None:
            limit = {} if self.max_samples is None else {"max_samples": self.max_samples}
            unnamed = partial(context.val_loader, **limit)
            self.loader = {"": unnamed} | {
                name: partial(unnamed, name=name) for name in context.val_names
            }

    def open(self) -> bool:
        """Make the loaders; return whether there is a validation set."""
        loaders = self.loader if isinstance(self.loader, Mapping) else {"": self.loader}
        made = {name: loader() for name, loader in loaders.items() if loader is not None}
        self._batches = {name: batches for name, batches in made.items() if batches is not None}
        return bool(self._batches)

    def shares(self, world_size: int) -> dict[str, list[object]]:
        """The batches of each of so many ranks, by the name of the loader.

        They are for one process that evaluates all of them.
        """
        loaders: Any = self.loader
        made = {name: make(rank=0, world_size=world_size) for name, make in loaders.items()}
        return {
            name: [batches.of_rank(rank) for rank in range(world_size)]
            for name, batches in made.items()
            if batches is not None
        }

    def on_start(self, trainer: TrainerView) -> None:
        if self.where != "inline":
            self._beside.check(trainer, self._is_composed, self._is_own)

    def on_before_train(self, trainer: TrainerView) -> None:
        self._interval.check(trainer)
        if not self.open():
            trainer.logger.info("There is no validation set, so there are no val/ metrics.")

    def on_ready(self, trainer: TrainerView) -> None:
        if self.where != "inline" or self._beside.pending:
            self._beside.open(trainer)
        if not self._take_arrived(trainer):
            return
        is_due = trainer.state.is_at_end() or self._interval.is_due(trainer, trainer.step)
        missed = trainer.step > 0 and is_due and self._done_at != trainer.step
        if missed or (trainer.step == 0 and self.at_start):
            # This step may have no checkpoint of this run.
            self._evaluate(trainer)

    def on_after_step(self, trainer: TrainerView) -> None:
        if self._beside.pending and not self._take_arrived(trainer):
            return
        if self._interval.is_due(trainer, trainer.state.step):
            if self._runs_beside(trainer):
                self._done_at = trainer.step
                self._beside.schedule(trainer)
            else:
                self._evaluate(trainer)

    def on_last_step(self, trainer: TrainerView) -> None:
        if self._beside.pending and not self._take_arrived(trainer):
            return
        if self._done_at != trainer.step:
            self._evaluate(trainer)

    def _take_arrived(self, trainer: TrainerView) -> bool:
        """Log the values of evaluations beside training that take effect now.

        Returns:
            False if a signal came while training waited for them.
        """
        try:
            while self._beside.pending:
                is_end = trainer.state.is_at_end() or trainer.must_pause()
                if is_end and self._beside.unschedule(trainer):
                    self._done_at = -1
                    continue
                with self._times.measured("evaluating"):
                    arrived = self._beside.next(trainer, all_of_them=is_end)
                if arrived is None:
                    break
                step, metrics = arrived
                with trainer.records_of(step):
                    self._log(trainer, metrics)
                self._beside.done(trainer, step)
        except signals.Interrupted:
            trainer.stop_at_this_boundary()
            return False
        return True

    def _runs_beside(self, trainer: TrainerView) -> bool:
        """Return whether another process evaluates this step.

        At the end of training it would only be waited for. A step whose update was skipped is not
        saved.
        """
        if self.where == "inline" or not self._batches or trainer.state.is_at_end():
            return False
        return not (trainer.must_pause() or trainer.update_was_skipped())

    def _evaluate(self, trainer: TrainerView) -> None:
        if not self._batches:
            return
        trainer.fire("on_evaluation_start")
        try:
            with self._times.measured("evaluating"):
                metrics = self.measure(trainer)
        finally:
            trainer.fire("on_evaluation_end")
        if metrics is None:
            trainer.stop_at_this_boundary()
            return
        self._done_at = trainer.step
        self._log(trainer, metrics)

    def _log(self, trainer: TrainerView, metrics: dict[str, object]) -> None:
        numbers, matrices = split_matrices(metrics)
        flat = flatten(numbers, "val/")
        is_late = trainer.logged_step < trainer.step
        trainer.logger.info(
            "Step %d: %s%s",
            trainer.logged_step,
            " ".join(f"{key} {show(flat[key])}" for key in flat),
            f" (known at step {trainer.step})" if is_late else "",
        )
        trainer.log({"val": numbers})
        if matrices:
            trainer.log_matrices({"val": matrices})
        for key in (f"val/{name}/loss" if name else "val/loss" for name in self._batches):
            if not math.isfinite(flat[key]):
                self._report_non_finite(trainer, key, flat[key])

    def means(self, trainer: TrainerView) -> SampleMeans:
        """Return the computation of a loader's means, with the hook's own metrics reset."""
        self.metrics.reset(trainer.device)
        return SampleMeans(
            trainer.checked_forward,
            trainer.model,
            trainer.strategy.forward_context,
            trainer.num_targets,
            self.metrics,
        )

    def measure(self, trainer: TrainerView) -> dict[str, Any] | None:
        """Return the metrics of each loader, nested under its name.

        A matrix is a list of rows. The result is None if a signal came on a rank.
        """
        metrics: dict[str, Any] = {}
        for name, batches in self._batches.items():
            lanes = trainer.strategy.lanes
            order = None if lanes is None else ChunkOrder(lanes, trainer.step)
            measured = self.means(trainer).over_ranks(batches, order)
            if measured is None:
                return None
            metrics |= {name: measured} if name else measured
        return metrics

    def _report_non_finite(self, trainer: TrainerView, key: str, value: float) -> None:
        step = trainer.logged_step
        trainer.logger.warning("Step %d: %s is %s.", step, key, value)
        if trainer.is_last_step and trainer.step == step > 0:
            skipped = trainer.state.skipped_in_row
            raise TrainingError(
                f"Training ended with {key}={value} at step {trainer.step}"
                + (f", after {skipped} skipped updates in a row" if skipped else "")
                + ". This state is not saved. Lower the learning rate or check the data."
            )

    def on_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        pending = list(self._beside.pending)
        state_dict["evaluation"] = {"done_at": self._done_at, "pending": pending}

    def on_load_state_dict(self, trainer: TrainerView, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("evaluation", {})
        self._done_at = saved.get("done_at", -1)
        # They are of checkpoints of the run that a fork starts from.
        self._beside.pending = [] if trainer.is_fork else list(saved.get("pending", ()))
        trainer.state.awaited = tuple(self._beside.pending)

    def on_close(self, trainer: TrainerView) -> None:
        self._beside.close()
