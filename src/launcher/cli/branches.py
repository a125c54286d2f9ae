"""The plan of a sweep with `run.share_prefix`: a tree, in which each run leaves another one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any


@dataclass
class Branch:
    """A run of a sweep.

    Args:
        index: the number of its job.
        steps: the steps of the whole run.
        trunk: the job whose run has the first steps, or None.
        start: the last of the steps that it has in common with the trunk.
        leaves: the jobs that leave this run, by the last common step.
    """

    index: int
    steps: int
    trunk: int | None = None
    start: int = 0
    leaves: dict[int, list[int]] = field(default_factory=dict)


def plan(identities: Sequence[dict[str, Any]]) -> list[Branch]:
    """Return the branches in the order in which they start: a trunk comes before its leaves.

    What two runs share with a third they share with each other, so any order trains the fewest
    steps. The run with the longest trunk starts first, and of equal ones the longest run.

    Args:
        identities: see `launcher.optim.common_steps.comparable`.
    """
    # Torch is imported late: only this needs it before a job starts.
    from launcher.optim.common_steps import common_steps, decisive

    lengths = [identity["trainer"]["max_steps"] or 0 for identity in identities]
    alike: dict[str, list[int]] = {}
    for index, identity in enumerate(identities):
        alike.setdefault(decisive(identity), []).append(index)
    common = {
        (one, other): common_steps(identities[one], identities[other])
        for members in alike.values()
        for one, other in combinations(members, 2)
    }
    common |= {(other, one): steps for (one, other), steps in common.items()}
    trees = [_tree(members, common, lengths) for members in alike.values()]
    trees.sort(key=lambda tree: -max(branch.start for branch in tree))
    return [branch for tree in trees for branch in tree]


def _tree(
    members: Sequence[int], common: Mapping[tuple[int, int], int], lengths: Sequence[int]
) -> list[Branch]:
    def longest(nearest: Mapping[int, tuple[int, int]]) -> int:
        return max(nearest, key=lambda index: (nearest[index][0], lengths[index], -index))

    shared = {
        index: (max((common[index, other] for other in members if other != index), default=0), 0)
        for index in members
    }
    first = longest(shared)
    tree = {first: Branch(first, lengths[first])}
    nearest = {index: (common[first, index], first) for index in members if index != first}
    while nearest:
        index = longest(nearest)
        start, trunk = nearest.pop(index)
        tree[index] = Branch(index, lengths[index], trunk if start else None, start)
        if start:
            tree[trunk].leaves.setdefault(start, []).append(index)
        for other, (most, _) in nearest.items():
            if common[index, other] > most:
                nearest[other] = common[index, other], index
    return list(tree.values())


def described(branches: Sequence[Branch]) -> str:
    """Return the line that a sweep prints before it starts."""
    total = sum(branch.steps for branch in branches)
    trained = total - sum(branch.start for branch in branches)
    return f"{len(branches)} runs, {total:,} steps; shared: {trained:,} are trained"
