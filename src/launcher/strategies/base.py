"""The verbs of a strategy. Nothing outside this package branches on a strategy."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from launcher.optim.precision import Precision
from launcher.process.lanes import Lanes
from launcher.process.ranks import Ranks
from launcher.strategies.step import StepPlan, StepResult

NULL = nullcontext()
BuildOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass
class Snapshot:
    """One rank's part of the state at a step boundary: live tensors by name, and a tree of plain
    values.

    Training continues to change these tensors: copy them to keep a snapshot past the boundary.
    """

    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, "ShardSpec"] = field(default_factory=dict)
    """Positions of the shards of sharded tensors."""


@dataclass(frozen=True)
class ShardSpec:
    """The position of a rank's piece in a tensor of `shape`.

    A piece with as many dimensions as the tensor is a box that starts at `offset`. A 1-D piece of
    an N-D tensor is a contiguous range of its flattened (row-major) values; `offset` then has one
    entry.
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]


class TensorReader(Protocol):
    """Source that a strategy loads from: stored tensors by name, each read directly into its
    destination."""

    path: Path
    meta: dict[str, Any]

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the full tensor, whether sharded or not."""

    def dtype(self, name: str) -> torch.dtype: ...

    def concurrent_reads(self) -> AbstractContextManager[None]:
        """A context in which reads run concurrently; their values are complete only at its end."""

    def read_into(
        self, name: str, target: torch.Tensor, offset: tuple[int, ...] | None = None
    ) -> None:
        """Fill `target`, the box or range (see `ShardSpec`) of the full tensor that starts at
        `offset` (default: the origin)."""


class Strategy(ABC):
    """Distributes model and optimizer over the ranks, and makes the steps.

    Order of the calls: `setup`, then `prepare` (which builds the model inside `init_context`), then
    for each micro-batch `grad_sync` and `forward_context` around the forward pass and `backward`,
    and `step` once per optimizer step.
    """

    checkpoint_format: ClassVar[str] = "sharded"
    name: ClassVar[str]
    forward_is_collective: ClassVar[bool] = False
    """True if a forward pass waits for other ranks; all ranks must then make the same number of
    them."""

    compiles_whole: ClassVar[bool] = True
    """True if the compiler gets one graph. False: the strategy's work between blocks breaks it."""

    has_plain_tensors: ClassVar[bool] = True
    """True if each parameter and its gradient is a separate tensor (a DTensor if sharded). False:
    they are ranges of flat buffers."""

    supports_lanes: ClassVar[bool] = False
    """True if gradients can be added in the order of the lanes."""

    ranks: Ranks
    lanes: Lanes | None = None
    """This rank's lanes, with `StepPlan.lanes`."""
    device: torch.device
    precision: Precision
    plan: StepPlan
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    before_clip: Callable[[], None] | None = None
    """Called between unscaling and clipping, when gradients are those of the whole step."""

    veto: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Called with the gradient's norm before the update. It returns a 0-d bool tensor, the same on
    every rank: whether to skip this update. The step still counts, and the learning rate moves
    on."""

    needs_closure: bool = False
    """True if the optimizer's step computes loss and gradients itself (LBFGS)."""
    closure: tuple[torch.Tensor, Callable[[], torch.Tensor]] | None = None
    """The step's loss for such an optimizer, and a function that computes loss and gradients
    again."""

    @abstractmethod
    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        """Take this rank's device and join the process group.

        Raises:
            ConfigError: the device, the precision or the number of ranks is not supported.
        """

    def init_context(self) -> torch.device:
        """The device on which a model's constructor runs: the rank's, or meta if that saves memory
        or time."""
        return self.device

    @abstractmethod
    def prepare(
        self, build_model: Callable[[], nn.Module], build_optimizer: BuildOptimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Build, initialise and wrap. It takes factories, since strategies build in different
        orders."""

    def forward_context(self) -> AbstractContextManager[Any]:
        return self.precision.autocast(self.device) if self.precision.is_mixed else NULL

    def grad_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        """A context for one micro-batch; its gradients are exchanged only if `enabled`."""
        return NULL

    @abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of `loss` (0-d), which the strategy divides by the accumulation
        steps."""

    @abstractmethod
    def step(self) -> StepResult:
        """Unscale, clip, update, zero the gradients."""

    def grad_norm(self, parameters: Iterable[nn.Parameter]) -> torch.Tensor:
        """2-norm over the gradients of parameters of the full model, 0-d, the same on every rank.
        All ranks must call it. Only with `has_plain_tensors`."""
        raise NotImplementedError

    @abstractmethod
    def zero_grad(self) -> None:
        """Drop the accumulated gradients."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """This rank's part of model, optimizer and scaler."""

    @abstractmethod
    def load(self, saved: TensorReader) -> None:
        """Restore model, optimizer and scaler, also from a checkpoint of another world size."""

    @abstractmethod
    def load_weights(self, saved: TensorReader, strict: bool = True) -> list[str]:
        """Load model tensors only. Returns a message for each that does not match; `strict`:
        raises TrainingError."""

    @abstractmethod
    def full_weights(self) -> dict[str, torch.Tensor] | None:
        """The full model's tensors on the CPU, on rank 0; None elsewhere. All ranks must call
        it."""

    def teardown(self) -> None:  # noqa: B027 - most have nothing to do
        """Leave the process group."""
