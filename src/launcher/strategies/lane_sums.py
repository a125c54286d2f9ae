"""The sum of the lanes' gradients in a binary tree, in a rank, over shards, and over replicas.

Every addition here is elementwise, so its result depends on no kernel's order, no shard's size and
no library's algorithm. An absent gradient is left out. If the others need a number, it is -0.0, to
which everything can be added without a change.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from launcher.errors import ConfigError
from launcher.models.changes import Versions
from launcher.models.modes import modes_of, set_modes
from launcher.process.ranks import maxima
from launcher.strategies.sharded import bits, local

Gradients = list[torch.Tensor | None]
BUCKET = 1 << 25
"""Bytes that are exchanged at once, unless a single tensor has more."""


class PartialSums:
    """Adds the `count` leaves of a full binary tree in their order, as a binary counter.

    It keeps one sum for each level that waits for its neighbor.
    """

    def __init__(self, count: int):
        self.count = count
        self.clear()

    def clear(self) -> None:
        self._waiting: list[tuple[int, Gradients]] = []
        self._added = 0

    def add(self, leaf: Gradients) -> Gradients | None:
        """Add a leaf, whose tensors may change; with the last one, clear and return the total."""
        level = 0
        self._added += 1
        while self._waiting and self._waiting[-1][0] == level:
            leaf = add_gradients(self._waiting.pop()[1], leaf)
            level += 1
        if self._added == self.count:
            self.clear()
            return leaf
        self._waiting.append((level, leaf))
        return None


class LaneSums:
    """Adds the gradients of a rank's `count` lanes, a power of two, in the order of the tree.

    Autograd adds each second lane to the one before it, as it accumulates micro-batches, so only
    every second lane needs memory and additions of its own.
    """

    def __init__(self, count: int):
        self._pair = min(count, 2)
        self._pairs = PartialSums(count // self._pair)
        self._in_pair = 0

    def clear(self) -> None:
        self._pairs.clear()
        self._in_pair = 0

    def add(self, parameters: Sequence[nn.Parameter]) -> None:
        """Note that a lane's backward pass has ended; after the last, gradients are the total."""
        self._in_pair += 1
        if self._in_pair < self._pair:
            return
        self._in_pair = 0
        gradients = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        total = self._pairs.add(gradients)
        if total is not None:
            for p, gradient in zip(parameters, total, strict=True):
                p.grad = gradient


@torch.no_grad()
def add_gradients(left: Gradients, right: Gradients) -> Gradients:
    """Return the sums, in the memory of `right`, the newer of the two, where both exist.

    The C library gives the newest memory back to the system when it is freed, and the next lane
    would fault it in again.
    """
    for i, older in enumerate(left):
        newer = right[i]
        if newer is None:
            right[i] = older
        elif older is not None:
            local(newer).add_(local(older))
    return right


def tree_sum(rows: torch.Tensor) -> torch.Tensor:
    """Sum [n, ...] over n, a power of two, in a full binary tree."""
    while len(rows) > 1:
        rows = rows[::2] + rows[1::2]
    return rows[0]


class TreeReduceScatter:
    """The sum over the ranks of a group, each getting its part.

    It is for `FSDPModule.set_custom_reduce_scatter`, with the traffic of any reduce-scatter.
    """

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: object,
        async_op: bool = False,
    ) -> None:
        received = swap_parts(input_tensor, group)
        parts = received.view(dist.get_world_size(group), -1)
        output_tensor.copy_(tree_sum(parts).view_as(output_tensor))


def swap_parts(tensor: torch.Tensor, group: object) -> torch.Tensor:
    """Send part r of a flat tensor to rank r of the group; return what arrived, in rank order."""
    received = torch.empty_like(tensor)
    dist.all_to_all_single(as_bytes(received), as_bytes(tensor), group=group)
    return received


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    # Gloo does not support every dtype.
    return tensor.view(torch.uint8)


@torch.no_grad()
def sum_over_replicas(parameters: Sequence[nn.Parameter], group: Any) -> None:
    """Replace each gradient by the sum over a group's ranks, in a full binary tree.

    All ranks of the run must call it. A rank gets a part of each bucket from the others, adds the
    parts, and sends out the sum. This is the traffic of a ring all-reduce.
    """

    def exchange(flat: torch.Tensor) -> None:
        count = dist.get_world_size(group)
        padded = torch.nn.functional.pad(flat, (0, -len(flat) % count))
        part = tree_sum(swap_parts(padded, group).view(count, -1))
        dist.all_gather_into_tensor(as_bytes(padded), as_bytes(part), group=group)
        flat.copy_(padded[: len(flat)])

    exchange_in_buckets(complete_gradients(parameters), exchange)


def complete_gradients(parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """Return the gradients that any rank has, with a zero where this rank has none."""
    has_gradient = maxima([int(p.grad is not None) for p in parameters])
    for p, is_anywhere in zip(parameters, has_gradient, strict=True):
        if is_anywhere and p.grad is None:
            p.grad = torch.empty_like(p, requires_grad=False)
            zero = complex(-0.0, -0.0) if p.is_complex() else -0.0
            local(p.grad).fill_(zero)
    return [local(p.grad) for p in parameters if p.grad is not None]


def exchange_in_buckets(
    tensors: Sequence[torch.Tensor], exchange: Callable[[torch.Tensor], object]
) -> None:
    """Let `exchange` change the values of several tensors at once, in a flat copy."""
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        exchange(flat)
        parts = flat.split([tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield consecutive tensors of one dtype, of about `BUCKET` bytes together."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.nbytes > BUCKET):
            yield bucket
            bucket = []
            size = 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket


def check_model(model: nn.Module) -> None:
    """Check that a model's results do not depend on how lanes are laid out over ranks."""
    modes = modes_of(model)
    # A module may keep its mode, by a `train()` of its own.
    model.train()
    in_training = {id(module) for module in model.modules() if module.training}
    set_modes(modes)
    for name, module in model.named_modules():
        if getattr(module, "track_running_stats", False) is True and id(module) in in_training:
            raise ConfigError(
                f"trainer.lanes: {name} ({type(module).__name__}) keeps statistics of the samples,"
                " which depend on the number of ranks; use GroupNorm or LayerNorm, or"
                " trainer.lanes=null."
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ConfigError(
                f"trainer.lanes: {name} has sparse gradients, which are not added in lane order;"
                " use sparse=False, or trainer.lanes=null."
            )


def check_optimizer(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Check that the update does not depend on how lanes are laid out over ranks."""
    name = type(optimizer).__name__
    if device.type == "cpu" and any(group.get("fused") for group in optimizer.param_groups):
        raise ConfigError(
            f"optimizer.fused=true: on the CPU, {name}'s fused kernel rounds by the position in a"
            " shard, so trainer.lanes would not give the same numbers; use optimizer.fused=null."
        )


class Unchanged:
    """A model's buffers and frozen parameters, which the lanes of a step must not change."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._buffers = [(name, buffer.clone()) for name, buffer in model.named_buffers()]
        frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self._frozen = Versions(frozen)

    def check(self) -> None:
        for name, before in self._buffers:
            # The forward pass may also have replaced it by another tensor.
            if not torch.equal(bits(self._model.get_buffer(name)), bits(before)):
                raise ConfigError(_changed("buffer", name))
        for name in self._frozen.changed():
            raise ConfigError(_changed("frozen parameter", name))


def _changed(kind: str, name: str) -> str:
    return (
        f"trainer.lanes: the forward pass changes the model's {kind} {name}, which would then"
        f" depend on the number of ranks; use a model without such a {kind}, or trainer.lanes=null."
    )
