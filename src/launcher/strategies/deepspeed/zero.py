"""Where DeepSpeed keeps what: which values of each parameter a rank has, and the way from its masters to its weights.

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) lays the fp32 masters of many parameters in one flat tensor and cuts it
into equal runs, without regard for where a parameter ends; an optimizer's moments lie as the masters do. A checkpoint
has them by parameter all the same, each rank's run with its place in the whole, so any number of ranks and any stage
finds what it needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from launcher.errors import ConfigError


@dataclass(frozen=True)
class Slot:
    """The run of a trainable parameter's values that this rank updates.

    Args:
        name: the parameter's; `group` is the number of its optimizer group.
        shape: of the whole parameter.
        start: where the run begins in the whole, in row-major order.
        flat: the tensor that the optimizer updates; the run begins at `at` in it.
        count: of the run's values.
    """

    name: str
    group: int
    shape: tuple[int, ...]
    start: int
    flat: torch.Tensor
    at: int
    count: int

    @property
    def is_whole(self) -> bool:
        return self.count == torch.Size(self.shape).numel()

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The run of a tensor that lies as `self.flat` does; 1-d, sharing its memory."""
        return flat.detach().view(-1).narrow(0, self.at, self.count)


class Whole:
    """Stage 0: every rank has all. Under bf16 and fp16 there are fp32 masters besides the weights, tensor by tensor."""

    shards = False

    def __init__(self, optimizer: Any) -> None:
        self.zero = optimizer
        self.has_masters = hasattr(optimizer, "fp32_groups")

    def slots(self, names: dict[int, str]) -> Iterator[Slot]:
        for group, (weights, masters) in enumerate(zip(*self._groups(), strict=True)):
            for weight, master in zip(weights, masters, strict=True):
                yield Slot(names[id(weight)], group, tuple(weight.shape), 0, master, 0, weight.numel())

    def _groups(self) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]]]:
        if self.has_masters:
            return self.zero.fp16_groups, self.zero.fp32_groups
        groups = [group["params"] for group in self.zero.param_groups]
        return groups, groups

    def weights_from_masters(self) -> None:
        if self.has_masters:
            for weights, masters in zip(*self._groups(), strict=True):
                for weight, master in zip(weights, masters, strict=True):
                    weight.data.copy_(master.data)


class Flat:
    """Stages 1 and 2: each group of weights is one flat tensor, of whose masters each rank has a run."""

    shards = True

    def __init__(self, optimizer: Any) -> None:
        self.zero = optimizer

    def slots(self, names: dict[int, str]) -> Iterator[Slot]:
        zero = self.zero
        for group, weights in enumerate(zero.bit16_groups):
            masters = zero.single_partition_of_fp32_groups[group]
            whole = zero.bit16_groups_flat[group]
            rank = torch.distributed.get_rank(zero.real_dp_process_group[group])
            low = rank * masters.numel()
            for weight in weights:
                begin = weight.data.storage_offset() - whole.storage_offset()  # a view of the flat weights
                first, last = max(begin, low), min(begin + weight.numel(), low + masters.numel())
                if first < last:
                    yield Slot(
                        names[id(weight)], group, tuple(weight.shape), first - begin, masters, first - low, last - first
                    )

    def weights_from_masters(self) -> None:
        self.zero.update_lp_params()


class Partitioned:
    """Stage 3: each weight is cut by itself, and the ranks' pieces gathered for its turn. The masters of the pieces lie
    one after the other in flat tensors, of which a group has one or more."""

    shards = True

    def __init__(self, optimizer: Any) -> None:
        self.zero = optimizer

    def slots(self, names: dict[int, str]) -> Iterator[Slot]:
        zero = self.zero
        for number, weights in enumerate(zero.fp16_groups):
            masters = zero.fp32_partitioned_groups_flat[number]
            for weight in weights:
                _, at, size = zero.grad_position[zero.get_param_id(weight)]
                start = torch.distributed.get_rank(weight.ds_process_group) * size
                count = min(size, weight.ds_numel - start)  # the last pieces may be padded, or nothing else
                if count > 0:
                    group = zero.sub_group_to_group_id[number]
                    yield Slot(names[id(weight)], group, tuple(weight.ds_shape), start, masters, at, count)

    @torch.no_grad()
    def weights_from_masters(self) -> None:
        """As at the end of DeepSpeed's own step."""
        zero = self.zero
        zero._partition_all_parameters()
        for number in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(number)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


Layout = Whole | Flat | Partitioned
LAYOUTS: dict[str, type[Layout]] = {
    "DeepSpeedZeroOptimizer": Flat,
    "DeepSpeedZeroOptimizer_Stage3": Partitioned,
    "FP16_UnfusedOptimizer": Whole,
}


def layout(optimizer: Any) -> Layout:
    """
    Args:
        optimizer: what the engine has made of ours.
    Raises:
        ConfigError: it is of a kind whose state cannot be saved here.
    """
    kind = type(optimizer).__name__
    if kind in LAYOUTS:
        return LAYOUTS[kind](optimizer)
    if isinstance(optimizer, torch.optim.Optimizer):
        return Whole(optimizer)
    raise ConfigError(
        f"strategy=deepspeed: with these settings DeepSpeed takes its {kind}, whose state cannot be saved here; take "
        "data_types out of strategy.config_file, or another zero_stage."
    )


def shape_of(parameter: nn.Parameter) -> tuple[int, ...]:
    """Of the whole parameter: stage 3 leaves an empty tensor where it was."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def is_trained(parameter: nn.Parameter) -> bool:
    """Whether DeepSpeed has given it to the optimizer: it leaves out what is frozen or has no values."""
    return parameter.requires_grad and bool(torch.Size(shape_of(parameter)).numel())


def is_cut(parameter: nn.Parameter) -> bool:
    """Whether ranks have pieces of it, as of all parameters under stage 3."""
    return hasattr(parameter, "ds_tensor")


def frozen_run(parameter: nn.Parameter) -> tuple[torch.Tensor, tuple[int, ...], int]:
    """This rank's run of a parameter that is not trained, the whole's shape, and where the run begins."""
    if not is_cut(parameter):
        return parameter.detach().view(-1), tuple(parameter.shape), 0
    cut: Any = parameter
    start = torch.distributed.get_rank(cut.ds_process_group) * cut.ds_tensor.ds_numel
    count = max(0, min(cut.ds_tensor.ds_numel, cut.ds_numel - start))
    return cut.ds_tensor.detach().view(-1).narrow(0, 0, count), shape_of(parameter), min(start, cut.ds_numel)
