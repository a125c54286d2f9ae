"""Check that all ranks use the same blocks and parameters, since FSDP's collectives must match."""

from functools import partial
from typing import Any

import torch
from torch import nn

from launcher.errors import TrainingError
from launcher.process import ranks
from launcher.strategies.shard_units import own_parameters


class CollectiveConsistencyCheck:
    """Compares the ranks in an attempt's first step.

    Without it, a difference makes the process group abort, or wait until its timeout. `units` are
    the blocks that are gathered when they are called.
    """

    def __init__(self, model: nn.Module, units: list[nn.Module], strategy: str):
        self.strategy, self._names, self._is_done = strategy, dict[int, str](), False
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            # It comes before the hook that gathers it.
            if module in units:
                compare = partial(self._compare_calls, name)
                self._handles.append(module.register_forward_pre_hook(compare, prepend=True))
            if any(own_parameters(module)):
                self._handles.append(
                    module.register_forward_pre_hook(partial(self._note_parameters, name))
                )
        self._handles.append(model.register_forward_hook(partial(self._compare_calls, "")))

    def _compare_calls(self, name: str, *_: object) -> None:
        if self._is_done or torch.compiler.is_compiling():
            return
        called = ranks.all_gather(name)
        other = next((rank for rank, theirs in enumerate(called) if theirs != called[0]), None)
        if other is not None:
            calls = [
                f"calls {name}" if name else "ends its forward pass"
                for name in (called[0], called[other])
            ]
            self._reject(f"rank 0 {calls[0]}, and rank {other} {calls[1]}")

    def _note_parameters(self, name: str, module: nn.Module, _: object) -> None:
        """Note a gathered module's parameters, to which the graph refers."""
        if not torch.compiler.is_compiling():
            self._names |= {id(p): f"{name}.{key}".lstrip(".") for key, p in own_parameters(module)}

    def compare_gradients(self, loss: torch.Tensor) -> None:
        """Check that the same parameters have gradients on all ranks."""
        used = ranks.all_gather(
            sorted(self._names[key] for key in _leaves(loss) & self._names.keys())
        )
        for rank, theirs in enumerate(used):
            if different := sorted(set(theirs) ^ set(used[0])):
                has, lacks = (rank, 0) if different[0] in theirs else (0, rank)
                self._reject(
                    f"the loss of rank {has} depends on {different[0]}, and the loss of"
                    f" rank {lacks} does not"
                )

    def _reject(self, what: str) -> None:
        raise TrainingError(
            f"strategy={self.strategy}: {what}. Every rank must use the same blocks and parameters"
            " in each step: call them on all ranks, or use strategy=ddp with"
            " strategy.find_unused_parameters=true."
        )

    def end(self) -> None:
        self._is_done = True
        for handle in self._handles:
            handle.remove()


def _leaves(loss: torch.Tensor) -> set[int]:
    """Return the `id`s of the parameters in a loss's graph."""
    leaves: set[int] = set()
    seen: set[object] = set()
    todo: list[Any] = [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            leaves.add(id(variable))
        todo += [following for following, _ in node.next_functions]
    return leaves
