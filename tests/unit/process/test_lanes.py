"""Lanes of ranks, and their random numbers."""

import random
from itertools import chain

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher.process.lanes import Lanes
from launcher.process.rng import isolated_rng, seed_all

POWERS = st.integers(0, 4)


@given(lanes=POWERS, ranks=POWERS, replicas=POWERS)
def test_each_lane_is_on_one_rank_and_each_sum_a_node_of_the_tree(lanes, ranks, replicas):
    ranks, replicas = min(ranks, lanes), min(replicas, ranks, lanes)
    layouts = [Lanes(1 << lanes, 0, r, 1 << ranks, 1 << replicas) for r in range(1 << ranks)]
    own = [layout.local for layout in layouts]
    assert sorted(chain(*own)) == list(range(1 << lanes))
    assert layouts[0].in_order(own) == list(range(1 << lanes))
    shards = 1 << (ranks - replicas)
    for first in range(0, 1 << ranks, shards):
        group = own[first : first + shards]
        # What a reduce-scatter adds is a run of neighbors that begins at a multiple of its length.
        for together in zip(*group, strict=True):
            assert list(together) == list(range(together[0], together[0] + shards))
            assert together[0] % shards == 0
        block = sorted(chain(*group))
        assert block == list(range(block[0], block[0] + len(block))) and not block[0] % len(block)


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_lane_has_random_numbers_of_its_own():
    with isolated_rng():
        seen = []
        for rank in (0, 1):
            lanes = Lanes(4, 7, rank, 2)
            for step in (1, 2):
                for lane in range(4):
                    lanes.set_random_state(step, lane)
                    seen.append(drawn())
        assert seen[:8] == seen[8:] and len(set(seen)) == 8
        for rank in (1, 2):
            seed_all(7, rank)
            assert drawn() not in seen
