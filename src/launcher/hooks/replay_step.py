"""Repeat the passes of a step and compare the gradients.

This detects silent corruption and operations that do not repeat.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from launcher.errors import NodeFault, TrainingError
from launcher.hooks.base import BaseHook, TrainerView
from launcher.hooks.state import reject_flat_buffers
from launcher.process import ranks
from launcher.process.rng import isolated_rng, restore_rng, rng_state
from launcher.strategies.checksum import MULTIPLIER, checksum
from launcher.strategies.weights import unwrap
from launcher.types import PositiveInt

LOSS, OUTPUTS, GRADIENTS = "the loss", "the outputs of", "the gradients of"
OUTPUT_GRADIENTS = "the gradients of the outputs of"
SHOWN = 3


@dataclass(frozen=True)
class Passes:
    """Checksums of forward and backward passes over the batches of a step.

    Args:
        losses: checksum of each batch's loss.
        outputs, output_gradients: checksums by the names of the modules without children, in the
            order of the passes. Only where gradients are exchanged in the backward pass.
        gradients: checksum of each gradient, by the parameter's name.
    """

    losses: list[int]
    outputs: dict[str, int]
    output_gradients: dict[str, int]
    gradients: dict[str, int]

    def difference(self, other: "Passes") -> str | None:
        """Describe the difference, or return None if there is none."""
        what = [LOSS] if self.losses != other.losses else []
        for kind, mine, theirs in (
            (OUTPUTS, self.outputs, other.outputs),
            (OUTPUT_GRADIENTS, self.output_gradients, other.output_gradients),
            (GRADIENTS, self.gradients, other.gradients),
        ):
            if names := [name for name, value in mine.items() if theirs.get(name) != value]:
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                what.append(f"{kind} {', '.join(names[:SHOWN])}{more}")
        return " and ".join(what) or None


class ReplayStepHook(BaseHook):
    """Repeats forward and backward of a step twice, and compares checksums on each rank.

    The repeats begin with the same random state and have the same batches. The checksums are of
    losses and gradients. A difference is reported with rank, host and device.

    The training itself does not change, since gradients, buffers and random state are restored. A
    module that counts its own forward passes counts these too. Without sharding, each rank compares
    the gradients of its own batches. Sharded gradients are already exchanged, so with them each
    rank compares the outputs of modules and their gradients too.

    Args:
        interval: steps between two checks.
        on_difference: reaction to a difference. "stop" raises before the update, and "warn" logs it
            and continues. "requeue_elsewhere" raises as well, and a SLURM job is requeued without
            the nodes that differ, unless all of several nodes differ. If losses or outputs
            of modules differ on some nodes, only these nodes count.
    """

    needs_one_optimizer: ClassVar = True

    def __init__(
        self,
        interval: PositiveInt = 1000,
        on_difference: Literal["stop", "warn", "requeue_elsewhere"] = "stop",
    ):
        self.interval, self.on_difference = interval, on_difference
        self._batches: list[object] = []

    def on_start(self, trainer: TrainerView) -> None:
        reject_flat_buffers(trainer, "hooks.replay_step", "gradients")

    def on_before_step(self, trainer: TrainerView) -> None:
        self._batches = []

    def on_batch(self, trainer: TrainerView, batch: Any) -> None:
        if trainer.step % self.interval == 0:
            self._batches.append(batch)

    def on_before_optimizer_step(self, trainer: TrainerView) -> None:
        batches, self._batches = self._batches, []
        if not batches:
            return
        with _unchanged(trainer):
            state = rng_state()
            first, second = (self._pass(trainer, batches, state) for _ in range(2))
        difference = first.difference(second)
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        location = f"rank {trainer.strategy.ranks.rank} ({socket.gethostname()}, {trainer.device})"
        gathered = ranks.all_gather((node, location, difference))
        differences = [
            f"{location}: {difference}"
            for _, location, difference in gathered
            if difference is not None
        ]
        if not differences:
            return
        text = (
            f"Step {trainer.step}: two passes over the same batches from the same random state"
            f" differ on {'; '.join(differences)}. The device is faulty, or an operation does not"
            " repeat (trainer.deterministic=true finds such operations)."
        )
        if self.on_difference == "warn":
            trainer.logger.warning(text)
            return
        text += " Nothing of this step is saved."
        if self.on_difference == "stop":
            raise TrainingError(text)
        faulty = faulty_nodes([(node, difference) for node, _, difference in gathered])
        if not faulty:
            raise TrainingError(f"{text} All nodes differ, so none is excluded.")
        raise NodeFault(text, faulty)

    def _pass(
        self, trainer: TrainerView, batches: list[object], state: dict[str, object]
    ) -> Passes:
        restore_rng(state)
        parameters = dict(unwrap(trainer.model).named_parameters())
        for p in parameters.values():
            if p.grad is not None:
                # It is changed in place, since DDP may own its memory.
                p.grad.zero_()
        losses, outputs, output_gradients = [], Checksums(), Checksums()
        is_sharded = trainer.strategy.forward_is_collective
        modules = unwrap(trainer.model) if is_sharded else torch.nn.Identity()
        with watched(modules, outputs, output_gradients):
            for number, batch in enumerate(batches, 1):
                with trainer.strategy.grad_sync(is_sharded and number == len(batches)):
                    with trainer.strategy.forward_context():
                        loss, _ = trainer.forward(batch)
                    if loss is not None:
                        losses.append(int(checksum([loss])))
                        trainer.strategy.backward(loss)
        gradients = Checksums()
        for name, p in parameters.items():
            if p.grad is not None:
                gradients.add(name, p.grad)
        return Passes(losses, outputs.numbers(), output_gradients.numbers(), gradients.numbers())


class Checksums(dict[str, torch.Tensor]):
    """Checksums by name, on the device."""

    def add(self, name: str, tensor: torch.Tensor) -> None:
        previous = self[name] * MULTIPLIER if name in self else 0
        self[name] = checksum([tensor.detach()]) + previous

    def numbers(self) -> dict[str, int]:
        values = torch.stack(list(self.values())).tolist() if self else []
        return dict(zip(self, values, strict=True))


@contextmanager
def watched(
    model: torch.nn.Module, outputs: Checksums, output_gradients: Checksums
) -> Iterator[None]:
    """Record the outputs of the modules without children, and the gradients of these outputs."""

    def watch(name: str, output: object) -> None:
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, torch.Tensor):
                outputs.add(name, tensor)
                if tensor.requires_grad:
                    tensor.register_hook(partial(output_gradients.add, name))

    handles = [
        module.register_forward_hook(lambda _, inputs, output, name=name: watch(name, output))
        for name, module in model.named_modules()
        if next(module.children(), None) is None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def faulty_nodes(reports: Sequence[tuple[str, str | None]]) -> list[str]:
    """Return the nodes to exclude.

    They are the nodes with a rank whose loss or outputs differ, or all that differ if there is
    none. If all of several nodes differ, none is returned, since an operation that does not repeat
    is more likely than as many faulty nodes.

    Args:
        reports: the node of each rank, and the difference there.
    """
    differing = {node for node, what in reports if what is not None}
    nodes = {
        node
        for node, what in reports
        if what is not None and what.startswith((LOSS, OUTPUTS, OUTPUT_GRADIENTS))
    }
    nodes = nodes or differing
    return [] if len(nodes) > 1 and nodes == {node for node, _ in reports} else sorted(nodes)


@contextmanager
def _unchanged(trainer: TrainerView) -> Iterator[None]:
    """Restore gradients, buffers and random state at the end."""
    model = unwrap(trainer.model)
    gradients = [(p, p.grad) for p in model.parameters()]
    tensors = [*model.buffers(), *(grad for _, grad in gradients if grad is not None)]
    before = [tensor.detach().clone() for tensor in tensors]
    with isolated_rng():
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, values in zip(tensors, before, strict=True):
                    tensor.copy_(values)
            for p, grad in gradients:
                p.grad = grad
