"""Repeat the passes of a step and compare the gradients, to detect silent corruption and operations
that do not repeat."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from launcher.errors import ConfigError, NodeFault, TrainingError
from launcher.hooks.base import BaseHook, TrainerView
from launcher.hooks.state import reject_flat_buffers
from launcher.process import ranks
from launcher.process.rng import isolated_rng, restore_rng, rng_state
from launcher.strategies.checksum import checksum
from launcher.strategies.weights import unwrap
from launcher.types import PositiveInt

LOSS = "the loss"
SHOWN = 3


@dataclass(frozen=True)
class Passes:
    """Checksums of forward and backward passes over the batches of a step.

    Args:
        losses: checksum of each batch's loss.
        gradients: checksum of each gradient, by the parameter's name.
    """

    losses: list[int]
    gradients: dict[str, int]

    def difference(self, other: "Passes") -> str | None:
        """Describe the difference, or return None if there is none."""
        names = [
            name for name, value in self.gradients.items() if other.gradients.get(name) != value
        ]
        what = [LOSS] if self.losses != other.losses else []
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            what.append(f"the gradients of {', '.join(names[:SHOWN])}{more}")
        return " and ".join(what) or None


class ReplayStepHook(BaseHook):
    """Repeats forward and backward of a step twice, from one random state and over the same
    batches, and compares checksums of losses and gradients on each rank. A difference is reported
    with rank, host and device.

    The training itself does not change, since gradients, buffers and random state are restored. A
    module that counts its own forward passes counts these too. Without sharding, each rank compares
    the gradients of its own batches. Sharded gradients are already exchanged, so with them the rank
    is found by its loss, or all ranks are named.

    Args:
        interval: steps between two checks.
        on_difference: reaction to a difference. "stop" raises before the update, and "warn" logs it
            and continues. "requeue_elsewhere" raises as well, and a SLURM job is requeued without
            the nodes that differ, unless all of several nodes differ. If a loss differs on some
            nodes, only these nodes count.
    """

    needs_one_optimizer: ClassVar = True

    def __init__(
        self,
        interval: PositiveInt = 1000,
        on_difference: Literal["stop", "warn", "requeue_elsewhere"] = "stop",
    ):
        self.interval, self.on_difference = interval, on_difference
        self._batches: list[Any] = []

    def on_start(self, trainer: TrainerView) -> None:
        reject_flat_buffers(trainer, "hooks.replay_step", "gradients")
        if trainer.strategy.needs_closure:
            raise ConfigError(
                "hooks.replay_step: this optimizer computes its own passes; leave the hook out."
            )

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

    def _pass(self, trainer: TrainerView, batches: list[Any], state: dict[str, Any]) -> Passes:
        restore_rng(state)
        parameters = dict(unwrap(trainer.model).named_parameters())
        for p in parameters.values():
            if p.grad is not None:
                # It is changed in place, since DDP may own its memory.
                p.grad.zero_()
        losses = []
        for number, batch in enumerate(batches, 1):
            is_last = trainer.strategy.forward_is_collective and number == len(batches)
            with trainer.strategy.grad_sync(is_last):
                with trainer.strategy.forward_context():
                    loss, _ = trainer.forward(batch)
                if loss is not None:
                    losses.append(int(checksum([loss])))
                    trainer.strategy.backward(loss)
        gradients = {
            name: checksum([p.grad]) for name, p in parameters.items() if p.grad is not None
        }
        values = torch.stack(list(gradients.values())).tolist() if gradients else []
        return Passes(losses, dict(zip(gradients, values, strict=True)))


def faulty_nodes(reports: Sequence[tuple[str, str | None]]) -> list[str]:
    """Return the nodes to exclude: nodes with a rank whose loss differs, or all that differ if
    there is none. If all of several nodes differ, return none, since an operation that does not
    repeat is more likely than as many faulty nodes.

    Args:
        reports: the node of each rank, and the difference there.
    """
    differing = {node for node, what in reports if what is not None}
    nodes = {node for node, what in reports if what is not None and what.startswith(LOSS)}
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
