"""Find the values of each parameter's fp32 master that this rank updates, and their places.

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) concatenates the masters of many parameters into
flat tensors and cuts them over the ranks without regard for the ends of parameters. An optimizer's
moments are laid out like its masters. DeepSpeed has no public call for the layout, so it is
measured: its public setters fill each parameter's master with the parameter's number, and the
numbers are then looked up in the flat tensors.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from launcher.errors import TrainingError
from launcher.process import ranks
from launcher.strategies.base import Shape


@dataclass(frozen=True)
class MasterSlice:
    """The range of a flattened parameter's master that this rank updates.

    Args:
        name: name of the parameter.
        group: index of its optimizer group.
        shape: shape of the full parameter.
        start: beginning of the range in the flattened parameter.
        flat: the tensor that the optimizer updates.
        at: beginning of the range in `flat`.
        count: number of values in the range.
    """

    name: str
    group: int
    shape: Shape
    start: int
    flat: torch.Tensor
    at: int
    count: int

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the range of a tensor with the layout of `flat`, 1-d, sharing its memory."""
        return flat.detach().view(-1).narrow(0, self.at, self.count)


def is_trained(parameter: nn.Parameter, shape: Shape) -> bool:
    """Return whether DeepSpeed updates it, which drops parameters that are frozen or empty."""
    return parameter.requires_grad and bool(torch.Size(shape).numel())


def _flat_masters(engine: Any, optimizer: torch.optim.Optimizer, stage: int) -> list[Any]:
    if stage != 3:
        return [flat for group in optimizer.param_groups for flat in group["params"]]
    from deepspeed.checkpoint.constants import FP32_FLAT_GROUPS

    flats: list[Any] = engine.optimizer.state_dict()[FP32_FLAT_GROUPS]
    return flats


def find_slots(
    engine: Any,
    optimizer: torch.optim.Optimizer,
    stage: int,
    members: list[list[str]],
    shapes: dict[str, Shape],
) -> list[MasterSlice]:
    """Find the part of each parameter's master that this rank updates.

    `members` are the names of the parameters of each optimizer group.
    """
    parameters = dict(engine.module.named_parameters())
    groups = [
        [name for name in names if is_trained(parameters[name], shapes[name])] for names in members
    ]
    if stage == 0:
        return _list_unsharded(optimizer, groups, shapes)
    flats = _flat_masters(engine, optimizer, stage)
    trained = {name: number for number, names in enumerate(groups) for name in names}
    ranges = _measure(
        flats, [parameters[name] for name in trained], [shapes[name] for name in trained], stage
    )
    lengths = ranks.all_gather([ranges[i][2] if i in ranges else 0 for i in range(len(trained))])
    slots = []
    for i, (name, group) in enumerate(trained.items()):
        total = torch.Size(shapes[name]).numel()
        if sum(of_rank[i] for of_rank in lengths) < total:
            raise TrainingError(
                f"strategy=deepspeed: DeepSpeed does not show where it keeps the master of {name}."
            )
        start = sum(of_rank[i] for of_rank in lengths[: ranks.rank()])
        # Stage 3 pads the last shards.
        count = min(lengths[ranks.rank()][i], total - start)
        if count > 0:
            flat, at, _ = ranges[i]
            slots.append(MasterSlice(name, group, shapes[name], start, flat, at, count))
    return slots


def _list_unsharded(
    optimizer: torch.optim.Optimizer, groups: list[list[str]], shapes: dict[str, Shape]
) -> list[MasterSlice]:
    """Return unsharded masters, which under fp32 are the parameters themselves."""
    masters = [
        [p for p in group["params"] if is_trained(p, tuple(p.shape))]
        for group in optimizer.param_groups
    ]
    return [
        MasterSlice(name, number, shapes[name], 0, master, 0, master.numel())
        for number, names in enumerate(groups)
        for name, master in zip(names, masters[number], strict=True)
    ]


@torch.no_grad()
def _measure(
    flats: list[torch.Tensor],
    parameters: list[nn.Parameter],
    shapes: list[Shape],
    stage: int,
) -> dict[int, tuple[torch.Tensor, int, int]]:
    """Return the flat tensor with a parameter's values, their start and count, by its number."""
    from deepspeed.utils import (
        safe_get_local_fp32_param,
        safe_set_full_fp32_param,
        safe_set_local_fp32_param,
    )

    values = [flat.detach().clone() for flat in flats]
    for flat in flats:
        flat.detach().fill_(-1)
    for number, (parameter, shape) in enumerate(zip(parameters, shapes, strict=True)):
        if stage == 3:
            safe_set_local_fp32_param(
                parameter, torch.full_like(safe_get_local_fp32_param(parameter), number)
            )
        else:
            safe_set_full_fp32_param(
                parameter, torch.full(shape, float(number), device=parameter.device)
            )
    ranges = {}
    for flat, before in zip(flats, values, strict=True):
        numbers = flat.detach().view(-1)
        changes = (numbers[1:] != numbers[:-1]).nonzero().view(-1).add(1).tolist()
        bounds = [0, *changes, numbers.numel()] if numbers.numel() else []
        for (at, end), number in zip(pairwise(bounds), numbers[bounds[:-1]].tolist(), strict=True):
            if number >= 0:
                ranges[int(number)] = flat, at, end - at
        flat.detach().copy_(before)
    return ranges
