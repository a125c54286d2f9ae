"""A checkpoint of one strategy and number of ranks goes into another, bit-exact."""

from pathlib import Path

import pytest

from support.ranks import Task, by_name, task
from support.reloading import stored

WRITERS = {
    "none": (1, ["strategy=none"]),
    "hybrid 2x2": (4, ["strategy=fsdp", "strategy.replicate=2"]),
    "ddp x2": (2, ["strategy=ddp"]),
    "fsdp x2": (2, ["strategy=fsdp"]),
}
READERS = {
    "ddp x2": (2, ["strategy=ddp"]),
    "fsdp x2": (2, ["strategy=fsdp"]),
    "no_shard x2": (2, ["strategy=fsdp", "strategy.sharding=no_shard"]),
    "none": (1, ["strategy=none"]),
    "fsdp x1": (1, ["strategy=fsdp"]),
    "fsdp x3": (3, ["strategy=fsdp"]),
}
PHASES = [(1, "w"), (4, "w"), (2, "wr"), (1, "r"), (3, "r")]
"""Ranks that are started one group after the other, and whether they write, read or both."""
MISFITS = {
    "optimizer=sgd": (
        "The optimizer is SGD, 2 groups; the checkpoint was written with AdamW, 2 groups."
    ),
    "model.dim=32": "shape (19, 16) in the checkpoint",
}
"""The check is made before any strategy lays out its tensors."""
STEPS = 3
PAIRS = [
    ("none", "none"),
    ("ddp x2", "fsdp x2"),
    ("fsdp x2", "none"),
    ("fsdp x2", "ddp x2"),
    ("fsdp x2", "fsdp x2"),
    ("fsdp x2", "fsdp x3"),
    ("hybrid 2x2", "fsdp x1"),
    ("hybrid 2x2", "no_shard x2"),
]
"""Writers have whole tensors or shards, and so do readers: each kind meets each."""
CHAIN = ("fsdp x2", "none", "ddp x3")
"""Two ranks wrote, one took it up and wrote again, three go on from there."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("resharding")


def place(root: Path, *names: str) -> Path:
    """A folder for a run, which is the same run wherever it is copied to."""
    return root / "-".join(names) / "name" / "id"


@pytest.fixture(scope="module")
def read(root):
    """State that each rank of each reader had from each writer's checkpoint."""
    phases = []
    for count, acts in PHASES:
        tasks: dict[tuple[str, ...], Task] = {}
        for name, (ranks, overrides) in WRITERS.items():
            if ranks == count and "w" in acts:
                tasks[name,] = task("saved", place(root, name), *overrides)
        for pair in PAIRS:
            ranks, overrides = READERS[pair[1]]
            if ranks == count and "r" in acts:
                source = str(place(root, pair[0]))
                tasks[pair] = task("loaded", place(root, *pair), *overrides, source=source)
        if count == 2:
            source = str(place(root, "none"))
            changes = [*MISFITS]
            tasks["misfits",] = task(
                "misfits", place(root, "misfits"), "strategy=ddp", source=source, changes=changes
            )
            for rank in (0, 1):
                folder = place(root, f"seen by {rank}")
                tasks["seen", str(rank)] = task(
                    "seen_by_one", folder, "strategy=ddp", source=source, rank=rank
                )
        if count == 3:
            source = str(place(root, *CHAIN[:2]))
            tasks[CHAIN] = task(
                "loaded", place(root, *CHAIN), "strategy=ddp", source=source, steps=STEPS + 2
            )
        phases.append((count, tasks))
    return {name: found for phase in by_name(root, *phases) for name, found in phase.items()}


def test_a_changed_model_or_optimizer_is_rejected_on_all_ranks(read):
    for sentences in read["misfits",]:
        assert sentences == read["misfits",][0]
        for change, why in MISFITS.items():
            assert "does not fit this configuration: " in sentences[change]
            assert why in sentences[change]


def test_all_ranks_take_what_rank_0_sees(read):
    assert (read["seen", "0"], read["seen", "1"]) == ([STEPS, STEPS], [0, 0])


@pytest.mark.parametrize("writer", WRITERS)
def test_every_value_is_written_once(root, read, writer):
    found = stored(str(place(root, writer)))
    assert found["written"] == found["numel"]
    assert any(name.endswith("exp_avg") for name in found["numel"])


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_tensors_are_equal_to_the_bit(root, read, pair):
    expected = stored(str(place(root, pair[0])))["tensors"]
    for rank in read[pair]:
        assert rank["tensors"] == expected
        assert (rank["step"], rank["samples"], rank["last"]) == (STEPS, STEPS * 12, STEPS + 1)


def test_all_resume_with_the_same_samples(read):
    """Each sample of the whole batch belongs to one rank, once, before and after the number of
    ranks changes."""
    taken = {
        pair: sorted(sample for rank in read[pair] for sample in rank["taken"])
        for pair in [*PAIRS, CHAIN]
    }
    last = taken.pop(CHAIN)
    expected = taken["none", "none"]
    assert len(expected) == len(set(expected)) == 12
    assert taken == dict.fromkeys(taken, expected)
    assert len(set(last)) == 12 and not set(last) & set(expected), "the chain continues behind them"


def test_two_ranks_then_one_then_three(root, read):
    between = stored(str(place(root, *CHAIN[:2])))["tensors"]
    assert between != stored(str(place(root, CHAIN[0])))["tensors"], "the one rank has trained"
    step = STEPS + 1
    for rank in read[CHAIN]:
        assert rank["tensors"] == between
        assert (rank["step"], rank["samples"], rank["last"]) == (step, step * 12, step + 1)


def test_each_rank_has_random_numbers_of_its_own(read):
    same, more = read["fsdp x2", "fsdp x2"], read["fsdp x2", "fsdp x3"]
    assert [rank["rng"] for rank in more[:2]] == [rank["rng"] for rank in same]
    assert len({rank["rng"] for rank in more}) == 3
