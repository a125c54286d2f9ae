"""The settings of an optimizer step (`StepPlan`) and its outcome (`StepResult`)."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StepPlan:
    """The settings of an optimizer step, the same for every strategy."""

    grad_accum_steps: int = 1
    max_grad_norm: float | None = None
    """Maximum 2-norm of the gradients over all parameters. With None or 0 they are not clipped."""
    retry_non_finite: bool = False
    """Change nothing at a non-finite gradient and return `StepResult.retry` instead of skipping the
    update."""
    recompute_every: int = 0
    """Recompute every n-th block in the backward pass (activation checkpointing). With 0 it is
    off."""
    micro_batch_size: int | None = None
    sync_every_micro_batch: bool = False
    lanes: int | None = None
    """The micro-batches of all ranks together, whose gradients are added in the order of
    `launcher.strategies.lane_sums`. With None, they are added in any order."""
    seed: int = 0
    """Seed of the random state of each lane, and of each batch of an evaluation."""


@dataclass(slots=True)
class StepResult:
    """The outcome of a step."""

    grad_norm: torch.Tensor | None = None
    """Norm before clipping, a 0-d tensor on the device, or None if the strategy does not compute
    it."""
    skipped: "bool | DeferredFlag" = False
    """True if the update was skipped. With a `DeferredFlag`, the device decides, and the host reads
    its answer later."""
    retry: bool = False


class DeferredFlag:
    """A 0-d device tensor, copied to the host without blocking the stream.

    The copy into pinned memory is queued at once. `read` waits only for that copy, whereas
    `tensor.item()` would wait for all work queued before it is called.
    """

    def __init__(self, flag: torch.Tensor):
        self._host = torch.empty((), dtype=flag.dtype, pin_memory=True)
        self._host.copy_(flag, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def read(self) -> bool:
        self._copied.synchronize()
        return bool(self._host)
