"""Save and load this rank's part of model and optimizer under a DeepSpeed engine, by name."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from launcher.errors import TrainingError
from launcher.strategies.base import Shape, ShardSpec, TensorReader, Tensors
from launcher.strategies.deepspeed.masters import MasterSlice, find_slots, is_trained
from launcher.strategies.native import OPTIMIZER
from launcher.strategies.optimizer_state import (
    Group,
    check_groups,
    portable,
    read_keys,
    read_values,
)
from launcher.strategies.weights import EXTRA, MODEL, misfits, model_tensors


class EngineState:
    """Saves and loads this rank's part of the state of a DeepSpeed engine.

    Args:
        engine: DeepSpeed's engine, built with `optimizer`.
        members: names of the parameters of each optimizer group.
        shapes: shapes of all parameters, by name, since at stage 3 the parameters are empty.
        first: the full initial parameters, under mixed precision, since DeepSpeed has rounded its
            masters to 16 bits.
    """

    def __init__(
        self,
        engine: Any,
        optimizer: torch.optim.Optimizer,
        stage: int,
        members: list[list[str]],
        shapes: dict[str, Shape],
        first: Tensors,
    ):
        self.module: nn.Module = engine.module
        self.optimizer = optimizer
        self.stage = stage
        self.members = members
        self.shapes = shapes
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.slots = find_slots(engine, optimizer, stage, members, shapes)
        self.frozen = [
            name for name, p in self._parameters().items() if not is_trained(p, shapes[name])
        ]
        # At stage 0 DeepSpeed makes a step with gradients of 0.
        self.optimizer.state.clear()
        if first:
            for slot in self.slots:
                values = first[slot.name].view(-1).narrow(0, slot.start, slot.count)
                slot.of(slot.flat).copy_(values)

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.module.named_parameters())

    def _buffers(self) -> Tensors:
        tensors = model_tensors(self.module).items()
        return {name: tensor for name, tensor in tensors if name not in self.shapes}

    # --------------------------------------------------------------------------------------- saving
    def snapshot(
        self,
    ) -> tuple[Tensors, dict[str, ShardSpec], list[Group]]:
        """Return this rank's tensors, the position of each shard, and the optimizer's groups.

        Only rank 0 has the values that are equal on all ranks. All ranks must call it.
        """
        tensors: Tensors = {}
        parts: dict[str, ShardSpec] = {}

        def put(name: str, values: torch.Tensor, shape: Shape, start: int) -> None:
            if values.numel() == torch.Size(shape).numel():
                tensors[name] = values.view(shape)
            else:
                tensors[name], parts[name] = values, ShardSpec(shape, (start,))

        groups = self._groups()
        # At stage 0 all ranks have the same state.
        slots = self.slots if self.stage or self.rank == 0 else ()
        for slot in slots:
            put(MODEL + slot.name, slot.of(slot.flat), slot.shape, slot.start)
            for key, value in self.optimizer.state.get(slot.flat, {}).items():
                full = f"{slot.name}/{key}"
                if not isinstance(value, torch.Tensor):
                    groups[slot.group]["values"][full] = value
                elif value.shape == slot.flat.shape:
                    put(OPTIMIZER + full, slot.of(value), slot.shape, slot.start)
                # A value for the whole parameter, such as a step count, is stored once.
                elif slot.start == 0:
                    tensors[OPTIMIZER + full] = value.detach()
        for name in self.frozen:
            values, start = self._share(name)
            if values.numel() or (self.rank == 0 and not torch.Size(self.shapes[name]).numel()):
                put(MODEL + name, values, self.shapes[name], start)
        if self.rank == 0:
            tensors |= {MODEL + name: buffer for name, buffer in self._buffers().items()}
        return tensors, parts, groups

    def _groups(self) -> list[Group]:
        return [
            {
                "optimizer": type(self.optimizer).__name__,
                "settings": {key: value for key, value in group.items() if key != "params"},
                "params": names,
                "values": {},
            }
            for group, names in zip(self.optimizer.param_groups, self.members, strict=True)
        ]

    def _share(self, name: str) -> tuple[torch.Tensor, int]:
        """Return this rank's share of a frozen parameter, flattened, and its beginning.

        At stage 3 each rank has an equal share, otherwise rank 0 has all of it.
        """
        from deepspeed import zero

        parameter = self._parameters()[name]
        total = torch.Size(self.shapes[name]).numel()
        if self.stage < 3:
            return parameter.detach().view(-1).narrow(0, 0, 0 if self.rank else total), 0
        start, end = (total * rank // self.world_size for rank in (self.rank, self.rank + 1))
        with zero.GatheredParameters([parameter]):
            return parameter.detach().view(-1)[start:end].to("cpu", copy=True), start

    def full_weights(self) -> Tensors | None:
        """Gather full masters and buffers one by one on rank 0's CPU. All ranks must call it."""
        from deepspeed import zero
        from deepspeed.utils import safe_get_full_fp32_param

        masters = {slot.name: slot.flat for slot in self.slots} if self.stage == 0 else {}
        weights = {}
        for name, parameter in self._parameters().items():
            with zero.GatheredParameters([parameter], enabled=name in self.frozen):
                whole = masters.get(name, parameter)
                if self.stage and name not in self.frozen:
                    whole = safe_get_full_fp32_param(parameter)
                if self.rank == 0:
                    weights[name] = whole.detach().view(self.shapes[name]).to("cpu", copy=True)
        if self.rank == 0:
            return weights | {n: b.cpu() for n, b in self._buffers().items()}
        return None

    # -------------------------------------------------------------------------------------- loading
    def load_weights(self, saved: TensorReader, prefix: str, strict: bool = True) -> list[str]:
        """Load weights and their masters, as `Strategy.load_weights`."""
        buffers = self._buffers()
        shapes = self.shapes | {name: tuple(buffer.shape) for name, buffer in buffers.items()}
        problems = misfits(self.module, shapes, saved, prefix, strict)
        fitting = shapes.keys() - {problem.split(":", 1)[0] for problem in problems}
        # The operations that all ranks do together come first. If one of them fails to read
        # something later, no other is left waiting.
        self._load_parameters(saved, prefix, [name for name in self.shapes if name in fitting])
        with saved.concurrent_reads():
            for slot in self.slots:
                if slot.name in fitting:
                    saved.read_into(prefix + slot.name, slot.of(slot.flat), (slot.start,))
            for name in buffers.keys() & fitting:
                saved.read_into(prefix + name, buffers[name])
        self.module.load_state_dict(saved.meta.get(EXTRA, {}), strict=False)
        return problems

    def _load_parameters(self, saved: TensorReader, prefix: str, names: list[str]) -> None:
        """Load parameters; at stage 3 rank 0 reads and broadcasts them.

        A read error is raised at the end, since the other ranks wait in every broadcast.
        """
        from deepspeed import zero

        failure: Exception | None = None
        parameters = self._parameters()
        for name in names:
            with zero.GatheredParameters([parameters[name]], modifier_rank=0):
                if self.stage < 3 or (self.rank == 0 and failure is None):
                    try:
                        saved.read_into(prefix + name, parameters[name])
                    except Exception as error:
                        failure = error
        if failure is not None:
            raise failure

    def load_optimizer(self, saved: TensorReader, groups: list[Group]) -> None:
        """Load the optimizer's state of any stage and number of ranks."""
        check_groups(self.optimizer, groups)
        stored_names = {name for entry in groups for name in entry["params"]}
        missing = sorted({name for names in self.members for name in names} - stored_names)
        if missing:
            raise TrainingError(
                f"The checkpoint's optimizer has no state for the parameter {missing[0]}."
            )
        for group, entry in zip(self.optimizer.param_groups, groups, strict=True):
            group.update(portable(entry["settings"]))
        keys = read_keys(saved, OPTIMIZER)
        values = read_values(groups)
        # State that the checkpoint does not have must go.
        self.optimizer.state.clear()
        # The checkpoint's order is kept, so that equal states are equal files.
        sharded = []
        for slot in self.slots:
            state = self.optimizer.state[slot.flat]
            state.update(values.get(slot.name, {}))
            for key in keys.get(slot.name, []):
                full = f"{OPTIMIZER}{slot.name}/{key}"
                if saved.shape(full) != slot.shape:
                    self._load_common(saved, full, key, slot)
                    continue
                if key not in state:
                    dtype = saved.dtype(full)
                    state[key] = torch.zeros_like(slot.flat, dtype=dtype, requires_grad=False)
                sharded.append((full, state[key], slot))
        with saved.concurrent_reads():
            for full, flat, slot in sharded:
                saved.read_into(full, slot.of(flat), (slot.start,))

    def _load_common(self, saved: TensorReader, full: str, key: str, slot: MasterSlice) -> None:
        """Load a value that all parameters of a flat tensor share."""
        group = self.optimizer.param_groups[slot.group]
        state = self.optimizer.state[slot.flat]
        device = (
            slot.flat.device
            if group.get("fused") or group.get("capturable")
            else torch.device("cpu")
        )
        value = torch.zeros(saved.shape(full), dtype=saved.dtype(full), device=device)
        saved.read_into(full, value)
        if not torch.equal(present := state.setdefault(key, value), value):
            raise TrainingError(
                f"{slot.name}/{key} is {value.tolist()} in the checkpoint, but {present.tolist()}"
                " for a parameter that ZeRO updates together with it; run.init_from loads only the"
                " weights."
            )
