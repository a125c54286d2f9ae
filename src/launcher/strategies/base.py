"""The interface of a strategy. Nothing outside this package branches on a strategy."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from launcher.optim.precision import Precision
from launcher.process.lanes import Lanes
from launcher.process.ranks import Ranks
from launcher.strategies.step import StepPlan, StepResult

NULL = nullcontext()
BuildModel = Callable[[], nn.Module]
BuildOptimizer = Callable[[nn.Module], Optimizer]
ModelAndOptimizer = tuple[nn.Module, Optimizer]
Shape = tuple[int, ...]
Tensors = dict[str, torch.Tensor]


@dataclass
class Snapshot:
    """One rank's part of the state at a step boundary: tensors by name, and a tree of plain values.

    Training continues to change these tensors, so copy them to keep a snapshot past the boundary.
    """

    tensors: Tensors
    meta: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, "ShardSpec"] = field(default_factory=dict)
    """Positions of the shards of sharded tensors."""


@dataclass(frozen=True)
class ShardSpec:
    """The position of a rank's shard in a tensor of `shape`.

    A shard with as many dimensions as the tensor is a box that starts at `offset`. A 1-D shard of
    an N-D tensor is a contiguous range of its flattened (row-major) values, and `offset` then has
    one entry.
    """

    shape: Shape
    offset: Shape


class TensorReader(Protocol):
    """Stored tensors by name, each read directly into its destination."""

    path: Path
    meta: dict[str, Any]

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> Shape:
        """Shape of the full tensor, whether sharded or not."""

    def dtype(self, name: str) -> torch.dtype: ...

    def under_names(self, names: Mapping[str, str]) -> "TensorReader":
        """Return a reader with other names; `names` maps each to the stored name."""

    def concurrent_reads(self) -> AbstractContextManager[None]:
        """Let reads within the context run concurrently; their values are complete at its end."""

    def read_into(self, name: str, target: torch.Tensor, offset: Shape | None = None) -> None:
        """Fill `target` with a box or range (see `ShardSpec`) from `offset`, or the origin, on."""


class Strategy(ABC):
    """Distributes model and optimizer over the ranks, and makes the steps.

    The calls come in this order: `setup`, then `prepare`, then for each micro-batch `grad_sync` and
    `forward_context` around the forward pass and `backward`, and `step` once per optimizer step.

    Examples:
        >>> from launcher import Strategy
        >>> from launcher.strategies.none import NoStrategy
        >>> class Counting(NoStrategy):
        ...     updates = 0
        ...
        ...     def step(self):
        ...         self.updates += 1
        ...         return super().step()
        >>> issubclass(Counting, Strategy)
        True
    """

    checkpoint_format: ClassVar[str] = "sharded"
    name: ClassVar[str]
    forward_is_collective: ClassVar[bool] = False
    """True if a forward pass waits for other ranks. All ranks must then make the same number of
    them."""

    compiles_whole: ClassVar[bool] = True
    """True if the compiler gets one graph, False if the strategy's work between blocks breaks
    it."""

    has_plain_tensors: ClassVar[bool] = True
    """True if each parameter and its gradient is a separate tensor (a DTensor if sharded), False if
    they are ranges of flat buffers."""

    needs_graph: ClassVar[bool] = True
    """False if the forward pass makes the update itself, so that a loss has no graph."""

    supports_lanes: ClassVar[bool] = False
    """True if the strategy adds gradients in the order of the lanes, and so gives the bits of
    `strategy=none`. It counts only for the class that declares it: a subclass may change them."""

    ranks: Ranks
    lanes: Lanes | None = None
    """This rank's lanes, with `StepPlan.lanes`."""
    device: torch.device
    precision: Precision
    plan: StepPlan
    model: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    before_clip: Callable[[], None] | None = None
    """Called between unscaling and clipping, when the gradients of the step are complete."""

    veto: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Called with the gradient's norm before the update. It returns whether to skip this update, as
    a 0-d bool tensor that is the same on every rank. The step still counts, and the schedule
    continues."""

    @abstractmethod
    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        """Take this rank's device and join the process group.

        A device, precision or number of ranks that is not supported is a ConfigError.
        """

    @abstractmethod
    def prepare(
        self, build_model: BuildModel, build_optimizer: BuildOptimizer
    ) -> ModelAndOptimizer:
        """Build, initialize and wrap; the order of building differs between strategies."""

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass: autocast with mixed precision, else nothing."""
        if self.precision.is_mixed:
            return self.precision.autocast(self.device)
        return NULL

    def grad_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        """Exchange the gradients of the micro-batch in the context only if `enabled`."""
        return NULL

    @abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of `loss` (0-d), divided by the accumulation steps."""

    @abstractmethod
    def step(self) -> StepResult:
        """Unscale, clip, update, zero the gradients."""

    @abstractmethod
    def grad_norm(self, parameters: Iterable[nn.Parameter]) -> torch.Tensor:
        """Compute the 2-norm over these parameters' full gradients, 0-d, the same on every rank.

        All ranks must call it. Only with `has_plain_tensors`.
        """

    @abstractmethod
    def zero_grad(self) -> None:
        """Drop the gradients that are accumulated so far."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return this rank's part of model, optimizer and scaler."""

    @abstractmethod
    def load(self, saved: TensorReader) -> None:
        """Restore model, optimizer and scaler, even from a checkpoint of another world size."""

    @abstractmethod
    def load_weights(self, saved: TensorReader, strict: bool = True) -> list[str]:
        """Load model tensors; return a message for each misfit, a TrainingError if `strict`."""

    @abstractmethod
    def full_weights(self) -> Tensors | None:
        """Return the full tensors on rank 0's CPU, elsewhere None. All ranks must call it."""

    def teardown(self) -> None:  # noqa: B027 - most have nothing to do
        """Leave the process group."""
