"""Each rank has the whole model and a share of the batch (torch's DistributedDataParallel)."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from launcher.optim.precision import Precision
from launcher.run import ranks
from launcher.strategies.base import NULL, BuildOptimizer
from launcher.strategies.native import NativeStrategy
from launcher.strategies.step import StepPlan
from launcher.types import PositiveFloat


class DdpStrategy(NativeStrategy):
    """Gradients are averaged over the ranks in buckets, while the backward pass goes on.

    Args:
        find_unused_parameters: some parameters get no gradient in some steps; costs a walk over the graph each step.
        static_graph: the same parameters are used in every step, so DDP may plan ahead; gradients are then exchanged
            with each micro-batch.
        bucket_cap_mb: MiB of gradients that are exchanged at once.
        gradient_as_bucket_view: gradients live in the buckets, which saves a copy of them.
        broadcast_buffers: before each forward pass that exchanges gradients, all take rank 0's buffers.
        compression: bf16 halves what is exchanged, and its precision.
        timeout: seconds that a rank waits for the others before it fails.
    """

    name = "ddp"
    compiles_whole = False

    def __init__(
        self,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        bucket_cap_mb: PositiveFloat = 25.0,
        gradient_as_bucket_view: bool = True,
        broadcast_buffers: bool = True,
        compression: Literal["none", "bf16"] = "none",
        timeout: PositiveFloat = 1800.0,
    ):
        self.options: dict[str, Any] = {
            "find_unused_parameters": find_unused_parameters,
            "static_graph": static_graph,
            "bucket_cap_mb": bucket_cap_mb,
            "gradient_as_bucket_view": gradient_as_bucket_view,
        }
        self.broadcast_buffers, self.compression, self.timeout = broadcast_buffers, compression, timeout

    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        super().setup(plan, precision, device)
        ranks.join(self.device, self.timeout)
        return self.device

    def prepare(
        self, build_model: Callable[[], nn.Module], build_optimizer: BuildOptimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        from torch.nn.parallel import DistributedDataParallel

        model = self.make_model(build_model)
        optimizer = build_optimizer(model)  # of the bare model, whose names and methods it may ask for
        ids = [self.device] if self.device.type == "cuda" else None
        takes = inspect.signature(DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in takes else "broadcast_buffers"  # its older name
        options = {**self.options, buffers: self.broadcast_buffers}
        wrapped = DistributedDataParallel(model, device_ids=ids, **options)
        if self.compression == "bf16":
            wrapped.register_comm_hook(None, average_in_bf16)
        # A static graph is learnt from the first pass, which has to be a real one; with unused parameters the first
        # buckets stay.
        if not (self.options["static_graph"] or self.options["find_unused_parameters"]):
            settle_buckets(wrapped)
        # A static graph is learnt from the first backward pass, which must have the exchange in it.
        is_static = self.options["static_graph"]
        self._no_sync = wrapped.no_sync if self.plan.no_sync_accumulate and not is_static else None
        self.attach(wrapped, optimizer, self.precision.scaler(self.device))
        return self.model, self.optimizer

    def grad_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        return NULL if enabled or self._no_sync is None else self._no_sync()


def settle_buckets(wrapped: Any) -> None:
    """Let a DDP module lay out its buckets before the first step. All ranks call it.

    DDP begins with one bucket, and lays out those that stay after its first backward pass, in the order in which the
    gradients came. The first step of a resumed run would so add up the ranks in another order than the same step of a
    run that goes on, and a sum of three numbers or more depends on it. Here the first pass is one over the bare
    parameters, the last ones first, and the first forward pass takes up its buckets: nothing of the model is computed
    twice, and no random number drawn.
    """
    parameters = [p for p in wrapped.parameters() if p.requires_grad]
    model: Any = wrapped.module
    own = vars(model).get("forward")  # where something has replaced the class's
    model.forward = lambda start: sum((p.sum() for p in parameters), start)
    try:
        wrapped(torch.zeros((), device=parameters[0].device)).backward()
    finally:
        del model.forward
        if own is not None:
            model.forward = own
    for p in parameters:
        p.grad = None


def average_in_bf16(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook: the mean over the ranks, exchanged in bf16. torch has one for NCCL alone."""
    gradients = bucket.buffer()
    compressed = gradients.to(torch.bfloat16).div_(dist.get_world_size())
    work: Any = dist.all_reduce(compressed, async_op=True)
    return work.get_future().then(lambda done: gradients.copy_(done.value()[0]))
