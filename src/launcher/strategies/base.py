"""The verbs of a strategy. Nothing outside this folder asks which strategy it has."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from launcher.optim.precision import Precision
from launcher.run.ranks import Ranks
from launcher.strategies.step import StepPlan, StepResult

NULL = nullcontext()
BuildOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass
class Snapshot:
    """One rank's part of the state at a step boundary: live tensors by name, and a tree of plain values.

    The tensors are the ones training goes on with: whoever keeps a snapshot past the boundary copies them first.
    """

    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, "Part"] = field(default_factory=dict)
    """Of tensors that are pieces of sharded ones."""


@dataclass(frozen=True)
class Part:
    """Where a rank's piece lies in a whole tensor of that shape.

    Pieces of as many dimensions as the whole are boxes. One of a single dimension in a whole that has not one is a run
    of its values in row-major order; its offset is a single number too.
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]


class Saved(Protocol):
    """What a strategy is given to load from: stored tensors by name, each read straight into its place."""

    path: Path
    meta: dict[str, Any]

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the whole tensor, however it was sharded."""

    def dtype(self, name: str) -> torch.dtype: ...

    def together(self) -> AbstractContextManager[None]:
        """What is read within may be there only at its end: many reads at once are faster than one after the other."""

    def read_into(self, name: str, target: torch.Tensor, offset: tuple[int, ...] | None = None) -> None:
        """Fill `target`, the box or run (see `Part`) of the whole that begins at `offset` (the origin by default)."""


class Strategy(ABC):
    """Lays model and optimizer over the ranks and makes a step of them.

    Order of the calls: `setup`, then `prepare` (which builds the model inside `init_context`), then for each
    micro-batch `grad_sync` and `forward_context` around the forward pass and `backward`, and `step` once per optimizer
    step.
    """

    checkpoint_format: ClassVar[str] = "sharded"
    name: ClassVar[str]
    forward_is_collective: ClassVar[bool] = False
    """Whether a forward pass waits for the other ranks', so that all must make equally many."""

    compiles_whole: ClassVar[bool] = True
    """Whether the compiler makes one graph of a model; else what the strategy does between the blocks breaks it."""

    ranks: Ranks
    device: torch.device
    precision: Precision
    plan: StepPlan
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    before_clip: Callable[[], None] | None = None
    """Called between unscaling and clipping, when gradients are those of the whole step."""

    needs_closure: bool = False
    """Whether the optimizer's step computes loss and gradients itself (LBFGS)."""
    closure: tuple[torch.Tensor, Callable[[], torch.Tensor]] | None = None
    """For such an optimizer: the step's loss, and a function that computes loss and gradients again."""

    @abstractmethod
    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        """Take this rank's device and join the process group.

        Raises:
            ConfigError: the device, the precision or the number of ranks cannot be had.
        """

    def init_context(self) -> torch.device:
        """Where a model's constructor runs: on its device, or on the meta device if that saves memory or time."""
        return self.device

    @abstractmethod
    def prepare(
        self, build_model: Callable[[], nn.Module], build_optimizer: BuildOptimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Build, initialise and wrap. It takes factories, since each strategy has its own order."""

    def forward_context(self) -> AbstractContextManager[Any]:
        return self.precision.autocast(self.device) if self.precision.is_mixed else NULL

    def grad_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        """Around a micro-batch: ranks exchange its gradients only where `enabled`."""
        return NULL

    @abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of `loss` (0-d), which the strategy divides by the accumulation steps."""

    @abstractmethod
    def step(self) -> StepResult:
        """Unscale, clip, update, zero the gradients."""

    @abstractmethod
    def zero_grad(self) -> None:
        """Drop what has been accumulated."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """This rank's part of model, optimizer and scaler."""

    @abstractmethod
    def load(self, saved: Saved) -> None:
        """Put back model, optimizer and scaler, also from a checkpoint of another world size."""

    @abstractmethod
    def load_weights(self, saved: Saved, strict: bool = True) -> list[str]:
        """Model tensors alone; returns a sentence for each that did not match (`strict`: raises instead)."""

    @abstractmethod
    def full_weights(self) -> dict[str, torch.Tensor] | None:
        """The whole model's tensors on the CPU, on rank 0; None elsewhere. All ranks call it."""

    def teardown(self) -> None:  # noqa: B027 - most have nothing to do
        """Leave the process group."""
