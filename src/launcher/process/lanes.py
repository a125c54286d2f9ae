"""Lanes, the equal micro-batches of a step, which are the same on any number of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch

from launcher.process.ranks import gather_tensors
from launcher.process.rng import seed_lane

T = TypeVar("T")


@dataclass(frozen=True)
class Lanes:
    """The lanes of a step, and the lanes of this rank.

    A step's gradient is a sum in a full binary tree over the lane numbers. Each replica of the
    model has a subtree of neighboring lanes, which its shards take in turn: shard s of S computes
    the lanes s, s + S, s + 2S, ... of the subtree. So a sum over the shards is a level of the tree
    near its leaves, the accumulation of these sums comes above, and a sum over the replicas is at
    the top. Numbers of lanes, ranks and replicas are powers of two.

    Args:
        count: lanes of a step.
        seed: seed of the run.
        replicas: number of ranks, or of groups of ranks, that have all weights.
    """

    count: int
    seed: int
    rank: int = 0
    world_size: int = 1
    replicas: int = 1

    @cached_property
    def local(self) -> list[int]:
        """This rank's lanes, in the order in which it computes them."""
        return self.of(self.rank)

    def of(self, rank: int) -> list[int]:
        shards = self.world_size // self.replicas
        replica, shard = divmod(rank, shards)
        first = replica * (self.count // self.replicas)
        share = self.count // self.world_size
        return [first + turn * shards + shard for turn in range(share)]

    def in_order(self, of_ranks: Sequence[Sequence[T]]) -> list[T]:
        """Order the values of all lanes, which `of_ranks` has for each rank, by lane."""
        numbered = (
            (lane, value)
            for rank, values in enumerate(of_ranks)
            for lane, value in zip(self.of(rank), values, strict=True)
        )
        return [value for _, value in sorted(numbered, key=lambda pair: pair[0])]

    def gather(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return 0-d tensors of all lanes, by lane, on every rank. The host does not wait."""
        if self.world_size == 1:
            return list(values)
        return self.in_order([part.unbind() for part in gather_tensors(torch.stack([*values]))])

    def end_of_step(self, step: int, losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Set the random state for what follows the lanes, and return the losses of all lanes."""
        self.set_random_state(step, self.count)
        return self.gather(losses)

    def set_random_state(self, step: int, number: int) -> None:
        """Set all random generators to the state of a lane.

        Numbers from `count` on are for the update after the lanes, and for the batches of an
        evaluation.
        """
        seed_lane(self.seed, step, number)
