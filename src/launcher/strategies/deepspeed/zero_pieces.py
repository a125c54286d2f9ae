"""What one rank of a DeepSpeed engine holds of model and optimizer, by parameter name: handed out, and put back."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from launcher.strategies.base import Part, Saved
from launcher.strategies.deepspeed.zero import frozen_run, is_cut, is_trained, layout, shape_of
from launcher.strategies.deepspeed.zero_state import load_state, state_snapshot
from launcher.strategies.native import MODEL, OPTIMIZER
from launcher.strategies.weights import misfits


class Pieces:
    """
    Args:
        engine: DeepSpeed's, with its own optimizer made of `optimizer`.
        names: of all parameters, by their `id`.
        members: names of the parameters of each of the optimizer's groups.
    Raises:
        ConfigError: see `layout`.
    """

    def __init__(self, engine: Any, optimizer: torch.optim.Optimizer, names: dict[int, str], members: list[list[str]]):
        self.module: nn.Module = engine.module
        self.optimizer, self.members = optimizer, members
        self.is_main = dist.get_rank() == 0
        self.layout = layout(engine.optimizer)
        self.slots = list(self.layout.slots(names))
        self.frozen = {name: p for name, p in self.module.named_parameters() if not is_trained(p)}

    def begin_with(self, first: dict[str, torch.Tensor]) -> None:
        """Masters as they were drawn, and no step made: DeepSpeed's have gone through 16 bits, and under stage 0
        through an update with gradients of 0, which decays them and counts.

        Args:
            first: whole parameters; empty where masters are exact.
        """
        self.optimizer.state.clear()
        for slot in self.slots if first else ():
            slot.of(slot.flat).copy_(first[slot.name].view(-1).narrow(0, slot.start, slot.count))

    # ----------------------------------------------------------------------------------------------------- handed out
    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict[str, Part], list[dict[str, Any]]]:
        """This rank's tensors, where they lie in whole ones, and the optimizer's groups. What all ranks have alike is
        in rank 0's alone."""
        tensors: dict[str, torch.Tensor] = {}
        parts: dict[str, Part] = {}

        def put(name: str, run: torch.Tensor, shape: tuple[int, ...], start: int) -> None:
            if run.numel() == torch.Size(shape).numel():
                tensors[name] = run.view(shape)
            else:
                tensors[name], parts[name] = run, Part(shape, (start,))

        slots = self.slots if self.layout.shards or self.is_main else []
        for slot in slots:
            put(MODEL + slot.name, slot.of(slot.flat), slot.shape, slot.start)
        state, groups = state_snapshot(self.optimizer, slots, self.members)
        for name, (value, of) in state.items():
            if of is None:
                tensors[OPTIMIZER + name] = value
            else:
                put(OPTIMIZER + name, value, of.shape, of.start)
        for name, parameter in self.frozen.items():
            run, shape, start = frozen_run(parameter)
            if self.is_main or (is_cut(parameter) and run.numel()):
                put(MODEL + name, run, shape, start)
        if self.is_main:
            tensors |= {MODEL + name: buffer for name, buffer in self._buffers().items()}
        return tensors, parts, groups

    def full_weights(self, device: torch.device) -> dict[str, torch.Tensor] | None:
        """Whole masters and buffers on the CPU, on rank 0; all ranks call it.

        Args:
            device: where the ranks can exchange them.
        """
        runs = {slot.name: (slot.of(slot.flat), slot.start) for slot in self.slots}
        for name, parameter in self.frozen.items():
            run, _, start = frozen_run(parameter)
            runs[name] = run, start
        weights = {}
        for name, parameter in self.module.named_parameters():
            alike = not is_cut(parameter) and (name in self.frozen or not self.layout.shards)
            whole = runs[name][0] if alike else self._gathered(parameter, runs.get(name), device)
            if self.is_main:
                weights[name] = whole.view(shape_of(parameter)).cpu().clone()
        return weights | {n: b.cpu() for n, b in self._buffers().items()} if self.is_main else None

    def _gathered(
        self, parameter: nn.Parameter, mine: tuple[torch.Tensor, int] | None, device: torch.device
    ) -> torch.Tensor:
        """All of it on rank 0, 1-d. The ranks' bytes are summed, of which all but one rank's are 0: that is exact."""
        dtype = torch.float32 if is_trained(parameter) else parameter.dtype
        whole = torch.zeros(torch.Size(shape_of(parameter)).numel(), dtype=dtype, device=device)
        if mine is not None:
            run, start = mine
            whole.narrow(0, start, run.numel()).copy_(run)
        dist.reduce(whole.view(torch.uint8), 0)
        return whole

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Those that a checkpoint has."""
        parameters = {name for name, _ in self.module.named_parameters(remove_duplicate=False)}
        return {name: tensor for name, tensor in self.module.state_dict().items() if name not in parameters}

    # ------------------------------------------------------------------------------------------------------- put back
    def load_weights(self, saved: Saved, prefix: str, strict: bool = True) -> list[str]:
        """As `Strategy.load_weights`; the engine's weights follow their masters."""
        buffers = self._buffers()
        own = {name: shape_of(p) for name, p in self.module.named_parameters()}
        own |= {name: tuple(buffer.shape) for name, buffer in buffers.items()}
        problems = misfits(self.module, own, saved, prefix, strict)
        fitting = set(own) - {problem.split(":", 1)[0] for problem in problems}
        with saved.together():
            for slot in self.slots:
                if slot.name in fitting:
                    saved.read_into(prefix + slot.name, slot.of(slot.flat), (slot.start,))
            for name in self.frozen.keys() & fitting:
                run, _, start = frozen_run(self.frozen[name])
                saved.read_into(prefix + name, run, (start,))
            for name in buffers.keys() & fitting:
                saved.read_into(prefix + name, buffers[name])
        self.layout.weights_from_masters()
        return problems

    def load_state(self, saved: Saved, prefix: str) -> None:
        load_state(self.optimizer, self.slots, self.members, saved, prefix, saved.meta["optimizer_groups"])
