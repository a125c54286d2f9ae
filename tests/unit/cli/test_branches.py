"""The plan of a sweep whose runs share their first steps."""

from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from launcher.cli.branches import describe_branches, plan
from launcher.resume.common_steps import common_steps
from support.paths import ROOT


def run(steps: int, ratio: float, seed: int = 0, warmup: int = 5) -> dict[str, Any]:
    wsd = {"_target_": "launcher.optim.schedulers.wsd", "warmup_steps": warmup, "max_steps": steps}
    return {
        "seed": seed,
        "trainer": {"max_steps": steps},
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.3},
        "scheduler": wsd | {"decay_ratio": ratio},
    }


RUNS = [run(steps, ratio) for steps in (100, 200) for ratio in (0.1, 0.2, 0.4)]


def test_the_plan_of_a_sweep():
    branches = plan(RUNS)
    starts = {branch.index: (branch.trunk, branch.start) for branch in branches}
    # Of 200 steps, the decays begin at 180, 160 and 120; of 100 steps at 90, 80 and 60.
    ends = {3: 0, 4: 161, 5: 121, 0: 91, 1: 81, 2: 61}
    assert starts == {job: (3 if start else None, start) for job, start in ends.items()}
    assert [branch.index for branch in branches] == [3, 4, 5, 0, 1, 2]
    assert branches[0].leaves == {161: [4], 121: [5], 91: [0], 81: [1], 61: [2]}
    assert describe_branches(branches) == "6 runs, 900 steps; shared: 385 are trained"


def test_a_run_that_was_trained_with_other_settings_is_no_trunk():
    """Only of the steps that both configurations have in common."""
    for other, start in ((run(200, 0.1, seed=1), 0), (run(200, 0.3), 141)):
        histories = [[other] if one is RUNS[3] else [] for one in RUNS]
        branches = plan(RUNS, histories)
        starts = {branch.index: branch.start for branch in branches if branch.trunk == 3}
        assert max(starts.values(), default=0) == start


def test_the_plan_of_the_page():
    runs = [run(steps, ratio, warmup=50) for ratio in (0.1, 0.2, 0.4) for steps in (1000, 2000)]
    assert describe_branches(plan(runs)) in (ROOT / "docs" / "shared_steps.md").read_text()


@pytest.mark.parametrize("order", [1, -1])
def test_each_tree_trains_the_fewest_steps(order):
    """It is a maximum spanning tree, and a trunk starts before its leaves."""
    runs = [*RUNS, *(run(steps, 0.2, seed=1) for steps in (50, 100))][::order]
    branches = plan(runs)
    places = {branch.index: place for place, branch in enumerate(branches)}
    for branch in branches:
        if branch.trunk is None:
            continue
        assert places[branch.trunk] < places[branch.index]
        assert branch.start == common_steps(runs[branch.index], runs[branch.trunk])
    # Kruskal's algorithm over all pairs.
    parent = list(range(len(runs)))

    def root(index: int) -> int:
        return index if parent[index] == index else root(parent[index])

    total = 0
    pairs = [(common_steps(runs[a], runs[b]), a, b) for a, b in combinations(range(len(runs)), 2)]
    for steps, one, other in sorted(pairs, reverse=True):
        if root(one) != root(other):
            parent[root(one)] = root(other)
            total += steps
    assert sum(branch.start for branch in branches) == total


def test_each_run_is_compared_with_few(monkeypatch):
    """Runs of other seeds are not compared, and of one seed only those at a fork."""
    counts: Counter[str] = Counter()
    original = common_steps

    def counted(one: dict[str, Any], other: dict[str, Any]) -> int:
        counts["same" if one["seed"] == other["seed"] else "other"] += 1
        return original(one, other)

    monkeypatch.setattr("launcher.resume.common_steps.common_steps", counted)
    runs = [run(200, 0.1 + 0.01 * ratio, seed) for ratio in range(20) for seed in range(5)]
    assert describe_branches(plan(runs)) == "100 runs, 20,000 steps; shared: 4,705 are trained"
    assert set(counts) == {"same"} and counts["same"] <= 4 * len(runs)
