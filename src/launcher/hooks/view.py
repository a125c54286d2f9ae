"""The view that a hook has of its trainer (`TrainerView`) and of the run (`RunContext`)."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from launcher.hooks.best import Best
from launcher.hooks.records import to_number, to_numbers
from launcher.process.times import PhaseTimes
from launcher.resume.forking import Fork
from launcher.resume.shared import SharedStart
from launcher.rundir.history import is_measured
from launcher.rundir.record_format import UnstoredData
from launcher.strategies.base import Strategy

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
    hook_names: Mapping[int, str] = field(default_factory=dict)
    """The configuration's keys of the hooks that it names, by the ids of these."""
    check_lock: Callable[[], None] = lambda: None
    """Must be called before writing in the run's folder, which another process may own."""
    unstored: UnstoredData | None = None
    """The state that a resume would lose, once a save has looked."""
    times: PhaseTimes = field(default_factory=PhaseTimes)
    """Time that this attempt has spent on evaluating and saving."""
    changed_in_evaluation: set[str] = field(default_factory=set)
    """Names of the model's tensors that an evaluation has changed, and of which it has warned."""


class Stats(NamedTuple):
    """Means over the steps since the last report."""

    steps: int
    numbers: dict[str, float]
    """`loss`, `step_time` and `data_time` in seconds, `non_finite_grad_retry_count`, and, where
    they are known, `grad_norm` and the largest `max_memory`."""
    records: Records
    learning_rates: dict[str, float]
    """The rates of the last step, by group name or `group_<i>`."""
    unexplained: int
    """Steps on this rank whose loss was not finite although the gradient was, so none was
    skipped."""
    without_targets: int
    """Steps whose labels were all ignored, on all ranks."""


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
    num_targets: torch.Tensor | int | None
    """Targets of the step on all ranks, or None if the batches do not count by them."""
    max_memory: float
    """GiB; only with `MemoryHook`."""
    has_all: bool
    """True if `records` are the records of all ranks, as with lanes."""
    means: Stats
    means_over_ranks: Stats
    """Means of the steps up to this one, once a hook has computed them."""


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
    hooks: list[Any]
    """Each a `BaseHook`, in the order in which an event calls them."""
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
    def own_attributes(self) -> dict[str, Any]: ...
    def training_state(self) -> State: ...
    def load_training_state(self, saved: State) -> None: ...
    def restore_schedule(self, saved: State, takes_rates: bool = False) -> None: ...
    def log(self, records: Records, dry_run: bool = False) -> None: ...
    def log_images(self, records: Records, dry_run: bool = False) -> None: ...
    def log_histograms(self, records: Records, dry_run: bool = False) -> None: ...
    def log_text(self, records: Records, dry_run: bool = False) -> None: ...
    def fire(self, event: str, *args: object, **options: object) -> None: ...
