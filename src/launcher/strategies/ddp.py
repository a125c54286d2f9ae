"""Each rank has a copy of the model and a share of the batch (torch's DistributedDataParallel)."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from launcher.errors import ConfigError
from launcher.optim.precision import Precision
from launcher.process import ranks
from launcher.strategies.base import NULL, BuildModel, BuildOptimizer, ModelAndOptimizer
from launcher.strategies.lane_sums import complete_gradients, exchange_in_buckets
from launcher.strategies.native import NativeStrategy
from launcher.strategies.step import StepPlan
from launcher.types import PositiveFloat, Seconds


@dataclass(eq=False)
class DdpStrategy(NativeStrategy):
    """Gradients are averaged over the ranks in buckets, during the backward pass.

    Args:
        find_unused_parameters: some parameters get no gradient in some steps. DDP then walks the
            graph in each step.
        bucket_cap_mb: MiB of gradients per all-reduce.
        gradient_as_bucket_view: gradients are views of the buckets, which saves a copy.
        reduce_dtype: gradients are summed over the ranks in this format, by torch's own hook. The
            gradients that the optimizer gets are fp32 again.
        timeout: a rank fails after waiting this many seconds for the others.
    """

    name = "ddp"
    later_keys = ("reduce_dtype",)
    supports_lanes = True
    compiles_whole = False

    find_unused_parameters: bool = False
    bucket_cap_mb: PositiveFloat = 25.0
    gradient_as_bucket_view: bool = True
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    timeout: Seconds = 1800.0
    _wrapped: frozenset[int] | None = field(default=None, init=False)
    """The `id`s of the parameters whose gradients DDP exchanges, or None without DDP."""

    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        super().setup(plan, precision, device)
        if plan.lanes is not None and self.reduce_dtype != "fp32":
            raise ConfigError(
                f"strategy.reduce_dtype={self.reduce_dtype}: rounds the gradients that ranks"
                " exchange, and with trainer.lanes no number may depend on the ranks; use"
                " strategy.reduce_dtype=fp32."
            )
        ranks.join(self.device, self.timeout)
        return self.device

    def num_replicas(self) -> int:
        return self.ranks.world_size

    def prepare(
        self, build_model: BuildModel, build_optimizer: BuildOptimizer
    ) -> ModelAndOptimizer:
        from torch.nn.parallel import DistributedDataParallel

        model = self.make_model(build_model)
        # The optimizer gets the unwrapped model, whose names and methods it may use.
        optimizer = build_optimizer(model)
        if self.lanes is not None:
            # DDP adds the ranks in an order of its own, so here `step` exchanges the gradients.
            self._no_sync = None
            self.attach(model, optimizer, self.precision.scaler(self.device))
            return self.model, self.optimizer
        ids = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            model,
            device_ids=ids,
            find_unused_parameters=self.find_unused_parameters,
            bucket_cap_mb=self.bucket_cap_mb,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
        )
        if self.reduce_dtype == "bf16":
            wrapped.register_comm_hook(None, sum_in_bf16)
        self._wrapped = frozenset(id(p) for p in model.parameters() if p.requires_grad)
        # With unused parameters, DDP keeps its first buckets.
        if not self.find_unused_parameters:
            settle_buckets(wrapped)
        self._no_sync = None if self.plan.sync_every_micro_batch else wrapped.no_sync
        self.attach(wrapped, optimizer, self.precision.scaler(self.device))
        return self.model, self.optimizer

    def gradient_exchange(self) -> Callable[[list[nn.Parameter]], None] | None:
        if self._wrapped is not None:
            # DDP does not know parameters that were frozen when it was made.
            late = [p for p in self._all_params if id(p) not in self._wrapped]
            return (lambda _: mean_over_ranks(late)) if late else None
        return super().gradient_exchange()

    def grad_sync(self, enabled: bool) -> AbstractContextManager[object]:
        if enabled or self._no_sync is None:
            return NULL
        return self._no_sync()


def sum_in_bf16(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks in bf16, for `register_comm_hook`."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    # Torch registers its own function with NCCL alone, and gloo adds bf16 as well.
    return bf16_compress_hook(group, bucket)


def settle_buckets(wrapped: Any) -> None:
    """Let a DDP module lay out its buckets before the first step. All ranks must call it.

    DDP starts with one bucket, and lays out its final buckets after the first backward pass, in the
    order in which the gradients arrived. The first step of a resumed run would then add up the
    ranks in another order than an uninterrupted run. So we make a first backward pass over the
    parameters only, the last ones first, and the first real step uses its buckets.
    """
    parameters = [p for p in wrapped.parameters() if p.requires_grad]
    model: Any = wrapped.module
    # An instance may have a `forward` of its own, which is restored.
    forward = vars(model).get("forward")
    # A loss is a real number.
    model.forward = lambda start: sum((p.sum().real for p in parameters), start)
    try:
        wrapped(torch.zeros((), device=parameters[0].device)).backward()
    finally:
        del model.forward
        if forward is not None:
            model.forward = forward
    for p in parameters:
        p.grad = None


@torch.no_grad()
def mean_over_ranks(parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by its mean over the ranks. All ranks must call it.

    A gradient that a rank does not have counts as 0, unless no rank has it.
    """

    def average(flat: torch.Tensor) -> None:
        dist.all_reduce(flat)
        flat /= dist.get_world_size()

    exchange_in_buckets(complete_gradients(parameters), average)
