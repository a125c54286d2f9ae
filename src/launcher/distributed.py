"""Ranks: who we are, and how all agree on one number without holding up the step."""

import os
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among all, as torchrun's variables tell; one process when they are absent."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @classmethod
    def from_env(cls) -> "Ranks":
        env = os.environ
        return cls(int(env.get("RANK", 0)), int(env.get("WORLD_SIZE", 1)), int(env.get("LOCAL_RANK", 0)))

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if is_initialized() else 1


def all_gather(value: T, group: Any = None) -> list[T]:
    """Every rank's value, in rank order. The values are pickled among our own processes only."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value, group=group)
    return values


def broadcast(value: T, group: Any = None) -> T:
    """Rank 0's value, on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=group)
    return box[0]


def barrier(group: Any = None) -> None:
    if world_size() > 1:
        dist.barrier(group=group)


class Agreement:
    """The maximum over all ranks of a small int (a signal number), overlapped with the optimizer's step.

    A flag of one rank alone would make it save while the others wait in a collective. The group is gloo of its own:
    it needs no device, and the training's collectives cannot mix with it.
    """

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo") if world_size() > 1 else None
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: Any = None

    @property
    def alone(self) -> bool:
        """One process: it may act on a signal without asking anybody."""
        return self._group is None

    def begin(self, value: int) -> None:
        if self._group is None or self._work is not None:
            return
        self._flag[0] = value
        self._work = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

    def result(self, value: int) -> int:
        """The agreed number; one process agrees with itself on `value`."""
        if self._group is None:
            return value
        if self._work is None:
            self.begin(value)
        self._work.wait()
        self._work = None
        return int(self._flag.item())
