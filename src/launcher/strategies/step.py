"""What an optimizer step is given (`StepPlan`) and what it returns (`StepResult`)."""

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class StepPlan:
    """How one optimizer step is made; the same for every strategy."""

    grad_accum_steps: int = 1
    max_grad_norm: float | None = None
    """Gradients are scaled down to this 2-norm over all parameters; None or 0: not clipped."""
    retry_non_finite: bool = False
    """Answer a non-finite gradient with `StepResult.retry` and leave everything as it was, instead of skipping."""
    recompute_every: int = 0
    """Every so many blocks of the model are computed again in the backward pass, to save memory; 0: none."""
    micro_batch_size: int | None = None
    no_sync_accumulate: bool = True


@dataclass
class StepResult:
    """What a step did."""

    grad_norm: torch.Tensor | None = None
    """Norm before clipping, a 0-d tensor on the device; None where the strategy cannot tell."""
    skipped: "bool | DeferredFlag" = False
    """Whether the update was left out. An accelerator decides by itself; then the answer comes later."""
    retry: bool = False
    info: dict[str, Any] = field(default_factory=dict)


class DeferredFlag:
    """A 0-d device tensor on its way to the host without holding up the stream.

    The copy into pinned memory is queued at once; `read` waits for that copy alone, not for work queued after it, as
    `tensor.item()` would.
    """

    def __init__(self, flag: torch.Tensor):
        self._host = torch.empty((), dtype=flag.dtype, pin_memory=True)
        self._host.copy_(flag, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def read(self) -> bool:
        self._copied.synchronize()
        return bool(self._host)
