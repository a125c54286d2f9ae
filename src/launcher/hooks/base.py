"""The events of hooks, and the view of the trainer (`TrainerView`) and the run (`RunContext`)."""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypedDict

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from launcher.config.messages import hint
from launcher.config.schema.value_types import check_bounds
from launcher.errors import ConfigError
from launcher.hooks.best import Best
from launcher.hooks.records import to_number, to_numbers
from launcher.process.times import PhaseTimes
from launcher.resume.forking import Fork
from launcher.resume.shared import SharedStart
from launcher.rundir.history import is_measured
from launcher.strategies.base import Strategy, TensorReader
from launcher.strategies.sharded import ShardedLike

Records = dict[str, Any]
"""Nested dicts of numbers or 0-d tensors."""
LossAndRecords = tuple[torch.Tensor | None, Records]
State = dict[str, Any]
"""Values by name, of which a checkpoint stores numbers, strings, tensors and containers."""


COUNTERS = "step", "skipped_steps", "skipped_in_row", "epoch"


@dataclass
class TrainState:
    """Progress of a run at a step boundary. Every counter counts optimizer steps."""

    max_steps: int = 0
    step: int = 0
    """The current step, counted from 1."""
    skipped_steps: int = 0
    """Steps whose update was skipped for a non-finite gradient, over the whole run."""
    skipped_in_row: int = 0
    epoch: int = 0
    """Complete passes over the training data before the current batch; 0 without a length."""
    num_epochs: float | None = None
    """Passes over the training data in `max_steps`. None if the data have no length."""
    stop_reason: str | None = None
    """Set by a hook (such as early stopping) to end training with the current step."""
    best: Best | None = None
    """Best value so far of the metric that chooses the best checkpoint, if there is one."""

    metrics: dict[str, Any] = field(default_factory=dict)
    """The newest value of each logged number, by flat name; after a resume rank 0's, without those
    that are measured, such as times."""

    def is_at_end(self) -> bool:
        return self.step >= self.max_steps or self.stop_reason is not None

    def stop(self, reason: str) -> None:
        self.stop_reason = reason

    def counters(self) -> State:
        """Return the part of the state that a checkpoint stores."""
        metrics = {
            key: to_number(value)
            for key, value in sorted(self.metrics.items())
            if isinstance(value, (int, float, np.generic, torch.Tensor))
            and np.ndim(value) == 0
            and not is_measured(key)
        }
        keys = (*COUNTERS, "stop_reason", "max_steps")
        return {key: getattr(self, key) for key in keys} | {"metrics": metrics}

    def load_counters(self, saved: State) -> None:
        for key in COUNTERS:
            setattr(self, key, saved[key])
        # Checkpoints before 0.1.0 may have none.
        self.metrics = dict(saved.get("metrics", {}))
        # A run that is extended must train further.
        self.stop_reason = saved["stop_reason"] if saved["max_steps"] == self.max_steps else None

    def to_dict(self) -> State:
        """Return the state as plain values for JSON; values on a device are read."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        return values | {
            "metrics": to_numbers(self.metrics),
            "best": self.best.state() if self.best else None,
        }


@dataclass
class RunContext:
    """Everything that a run provides to its hooks, as `trainer.context`."""

    val_loader: Callable[..., Iterable[Any] | None] | None = None
    """Makes this rank's validation loader; returns None if there is no validation set.
    `max_samples=n`: the first n samples, over all ranks. `name=...`: the loader of one of
    `val_names`."""
    test_loader: Callable[..., Iterable[Any] | None] | None = None
    """Makes this rank's loader of the test set; returns None if there is none."""
    val_names: tuple[str, ...] = ()
    """The names of further validation sets."""
    data: Any = None
    """The data source of the configuration."""
    texts: dict[str, str] = field(default_factory=dict)
    """Small files to store next to each checkpoint, by name."""
    settings: dict[str, Any] | None = None
    """Settings that decide the numbers of the steps, or None if the run has no identity."""
    initial_weights: str | None = None
    """Digest of the weights of `run.init_from`, once they are loaded."""
    fork: Fork | None = None
    """The start of a run that is a fork, or None."""
    shared: SharedStart | None = None
    """Finds common steps for a run with `run.share_prefix`, or None."""
    leaves: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Ids of the runs that will start from this run's checkpoints, by the steps of these."""
    attempt: int = 1
    """Number of attempts of this run, the current one included."""
    check_lock: Callable[[], None] = lambda: None
    """Must be called before writing in the run's folder, which another process may own."""
    times: PhaseTimes = field(default_factory=PhaseTimes)
    """Time that this attempt has spent on evaluating and saving."""
    changed_in_evaluation: set[str] = field(default_factory=set)
    """Names of the model's tensors that an evaluation has changed, and of which it has warned."""


class StepInfo(TypedDict, total=False):
    """A step's values for hooks. Reading a tensor makes the host wait for the device."""

    loss: list[torch.Tensor]
    """0-d, one for each micro-batch; with lanes of all ranks, in the order of the lanes."""
    records: list[Records]
    """Records that `forward` returned, one for each micro-batch."""
    data_time: list[float]
    """Seconds that the host waited for each micro-batch."""
    step_time: float
    """Seconds from the first micro-batch to the update."""
    grad_norm: torch.Tensor | None
    """Norm before clipping, 0-d, or None if the strategy does not compute it."""
    lr: list[float | torch.Tensor]
    """Learning rate of each parameter group in this step."""
    non_finite_grad_retry_count: int
    max_memory: float
    """GiB; only with `MemoryHook`."""
    has_all: bool
    """True if `records` are the records of all ranks, as with lanes."""
    means: Any
    means_over_ranks: Any
    """The `hooks.stats.Stats` of the steps up to this one, once a hook has computed them."""


class TrainerView(Protocol):
    """The trainer as hooks see it."""

    context: RunContext
    state: TrainState
    gradient_accumulation_steps: int
    workspace: Path | None
    device: torch.device
    logger: logging.Logger
    model: nn.Module
    optimizer: torch.optim.Optimizer
    lr_scheduler: LRScheduler | None
    strategy: Strategy
    data_loader: Any
    hooks: list["BaseHook"]
    step_info: StepInfo
    restored: State | None
    """`training_state`, the states of `hooks` and `rng`, set by the hook that loads them."""
    resumed_from: Path | None
    step_has_changed: bool
    """A hook has completed the restored step, so its boundary comes again, which saves it again."""
    pause_at: int | None
    is_fork: bool
    """True at the first launch of a fork, when `resumed_from` is a checkpoint of another run."""

    @property
    def source(self) -> Any:
        """The data loader, or a wrapper that knows its position."""

    @property
    def max_steps(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def samples(self) -> int | None: ...
    @property
    def local_samples(self) -> int | None:
        """Samples that this rank has received in this attempt, or None if no one counts them."""

    @property
    def stop_signal(self) -> int:
        """The signal on which training ends at this boundary, or 0, the same on all ranks."""

    @property
    def is_last_step(self) -> bool: ...
    @property
    def is_paused(self) -> bool:
        """Return whether `pause_at` ends training at this boundary, before its last step."""

    def forward(self, input: Any) -> LossAndRecords: ...
    def call_forward(self, input: Any) -> LossAndRecords: ...
    def num_targets(self, input: Any) -> torch.Tensor | int | None: ...
    def stop_at_this_boundary(self) -> None: ...
    def update_was_skipped(self) -> bool: ...
    def training_state(self) -> State: ...
    def load_training_state(self, saved: State) -> None: ...
    def restore_schedule(self, saved: State, takes_rates: bool = False) -> None: ...
    def log(self, records: Records, dry_run: bool = False) -> None: ...
    def log_images(self, records: Records, dry_run: bool = False) -> None: ...
    def log_histograms(self, records: Records, dry_run: bool = False) -> None: ...
    def log_text(self, records: Records, dry_run: bool = False) -> None: ...
    def fire(self, event: str, *args: object, **options: object) -> None: ...


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
        if (construct := vars(cls).get("__init__")) is not None:
            cls.__init__ = _with_checked_bounds(construct, cls.__name__)  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute. A function named on_* must have the name of an event."""
        if name.startswith("on_") and callable(value):
            check_event(name, type(self).__name__)
        super().__setattr__(name, value)

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


def overrides(hook: BaseHook, event: str) -> bool:
    """Return whether a hook handles an event, by its class or by a function set on the instance."""
    return getattr(getattr(hook, event), "__func__", None) is not getattr(BaseHook, event)
