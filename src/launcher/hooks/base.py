"""The events of the loop, which a hook overrides."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from launcher.config.messages import hint
from launcher.config.schema.value_types import check_bounds
from launcher.errors import ConfigError
from launcher.hooks.view import Records, State
from launcher.hooks.view import RunContext as RunContext
from launcher.hooks.view import StepInfo as StepInfo
from launcher.hooks.view import TrainerView as TrainerView
from launcher.strategies.base import TensorReader
from launcher.strategies.sharded import ShardedLike


class BaseHook:
    """Override the events that you need; the others cost nothing.

    Hooks are called in list order, at each step, and a hook with an interval checks it itself.

    Examples:
        >>> class PrintStep(BaseHook):
        ...     def on_after_step(self, trainer):
        ...         print("step", trainer.step)
        >>> class Printing(Line):
        ...     def build_hooks(self):
        ...         return [PrintStep()]
        >>> Printing(max_steps=2, device="cpu").train()
        step 1
        step 2
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Let constructors reject numbers outside the bounds of their annotations."""
        super().__init_subclass__(**options)
        construct = vars(cls).get("__init__")
        if construct is not None:
            cls.__init__ = _with_checked_bounds(construct, cls.__name__)  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute. A function named on_* must have the name of an event."""
        if name.startswith("on_") and callable(value):
            check_event(name, type(self).__name__)
        super().__setattr__(name, value)

    needs_gradients: ClassVar[bool] = True
    """False if `on_before_optimizer_step` may be left out, as in the training of a model that steps
    its own optimizers."""
    changes_numbers: ClassVar[bool] = True
    """False if this hook only observes: it changes no number of the run, so its node is not part of
    the run's identity. This attribute and the next four are read from the source, also of a base
    class, so they are literals."""
    provides: ClassVar[tuple[str, ...] | None] = None
    """Names of what other hooks can need of this one, as the groups of metrics that it logs:
    `("val/",)`. None: anything."""
    needs: ClassVar[dict[str, str]] = {}
    """Names of what this hook needs of others to have an effect, by the setting that makes it need
    them: `{"evaluate=true": "evaluation"}`. A configuration without them is rejected."""
    steered_by: ClassVar[tuple[str, ...]] = ()
    """Parameters that name metrics by which this hook steers training: `("metric",)`. A hook that
    provides such a metric is needed, and belongs to the identity of the run."""
    at_the_end: ClassVar[tuple[str, ...]] = ()
    """Parameters that ask for work once the run is trained. A completed run does it on request."""
    runs_first: ClassVar[bool] = False
    """True if this hook is called before the others, which read what it adds to
    `trainer.step_info`."""

    def on_start(self, trainer: TrainerView) -> None:
        """Change model, optimizer or loader here: they are built, and nothing is restored yet."""

    def on_restore(self, trainer: TrainerView) -> None:
        """Load model, optimizer and counters, in the hook that saves checkpoints only."""

    def on_before_train(self, trainer: TrainerView) -> None:
        """Called when model and counters are restored, but not yet the state of the hooks."""

    def on_ready(self, trainer: TrainerView) -> None:
        """Called when everything is restored and the first step comes next."""

    def on_epoch_start(self, trainer: TrainerView) -> None:
        """Called when `trainer.step` begins a pass over training data with a length."""

    def on_epoch_end(self, trainer: TrainerView) -> None:
        """Called at the step that takes the last samples of a pass, after every `on_after_step`."""

    def on_before_step(self, trainer: TrainerView) -> None:
        """Called before `trainer.step` runs. All records of the previous step are logged."""

    def on_batch(self, trainer: TrainerView, batch: Any) -> None:
        """Called with a micro-batch, on the device, before its forward pass."""

    def on_before_optimizer_step(self, trainer: TrainerView) -> None:
        """Called once a step: gradients are complete, unscaled, and not yet clipped."""

    def on_after_step(self, trainer: TrainerView) -> None:
        """Called after the update; `trainer.step_info` describes the step."""

    def on_last_step(self, trainer: TrainerView) -> None:
        """Called after every hook's `on_after_step` if training ends with this step.

        Log here what would otherwise be missing, whatever the interval.
        """

    def on_step_boundary(self, trainer: TrainerView) -> None:
        """Called after these events of every hook: the step is complete, its state is final."""

    def on_evaluation_start(self, trainer: TrainerView) -> None:
        """Called before the validation set is evaluated. Change the weights for it here.

        Called again if a signal ends the evaluation and the resumed run repeats it.
        """

    def on_evaluation_end(self, trainer: TrainerView) -> None:
        """Called after an evaluation, also if a signal ended it, before it is logged."""

    def on_checkpoint_saved(self, trainer: TrainerView, path: Path) -> None:
        """Called when a checkpoint is durable: before the next save, or when training ends."""

    def on_error(self, trainer: TrainerView, error: Exception) -> None:
        """Called before `on_close` when training fails with this exception on this rank."""

    def on_after_train(self, trainer: TrainerView) -> None:
        """Called when training reached its end, but not if it was stopped or failed."""

    def on_close(self, trainer: TrainerView) -> None:
        """Called when training ended in any way. Close files and threads here."""

    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        """Log nested records of numbers, or with `dry_run` only describe the output."""

    def on_log_scalars(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        """Called instead of `on_log` if it is overridden, by its name in trainloop 0.11."""
        self.on_log(trainer, records, dry_run=dry_run)

    def on_log_images(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        """Log nested records of images: PIL images, arrays [H, W, C] or tensors [C, H, W]."""

    def on_log_histograms(
        self, trainer: TrainerView, records: Records, dry_run: bool = False
    ) -> None:
        """Log nested records of tensors or arrays, whose values are to be counted in bins."""

    def on_log_text(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        """Log nested records of texts."""

    def state_tensors(self, trainer: TrainerView) -> dict[str, ShardedLike]:
        """Return tensors with the shapes of the model's tensors, by names that no other hook uses.

        Each rank stores its own shards, so they can be restored under any strategy and number of
        ranks. All other state goes into `on_state_dict`.
        """
        return {}

    def load_tensors(self, trainer: TrainerView, saved: TensorReader) -> None:
        """Read the `state_tensors` that the checkpoint has.

        Called in `on_restore`, and again if the checkpoint is damaged and an older one is read.
        """

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        """Add the state that a resume needs: numbers, strings, tensors and containers.

        `state_dict` has the keys `model` (the model's tensors by name) and `training_state`
        (counters, scheduler, scaler, position in the data).
        """

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        """Restore the state of `on_state_dict`; `model` and `training_state` are there too.

        Called after every hook's `on_before_train`, unless this hook was not in the run that saved.
        """


def _with_checked_bounds(construct: Callable[..., None], name: str) -> Callable[..., None]:
    @functools.wraps(construct)
    def construct_checked(self: object, *args: object, **options: object) -> None:
        check_bounds(name, construct, (self, *args), options)
        construct(self, *args, **options)

    return construct_checked


EVENTS = tuple(name for name in vars(BaseHook) if name.startswith("on_"))


def check_event(name: str, source: str) -> None:
    """Check that a hook's method has the name of an event; messages name the source."""
    if name not in EVENTS:
        raise ConfigError(
            f"{source}.{name} is not an event{hint(name, EVENTS)} A method that is called by other"
            " code needs a name without on_."
        )


def overrides(hook: object, event: str) -> bool:
    """Return whether a hook handles an event, by its class or by a function set on the instance."""
    return getattr(getattr(hook, event), "__func__", None) is not getattr(BaseHook, event)
