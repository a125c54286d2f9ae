"""A checkpoint of one strategy and number of ranks goes into another, bit-exact."""

from pathlib import Path
from typing import Any

import pytest

from support.ranks import Task, together
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
    "fsdp x3 again": (3, ["strategy=fsdp"]),
}
REJECTING = "ddp x2"
"""The reader that gets what does not fit: the check is made before any strategy lays out its
tensors."""
PHASES = [(1, "w"), (4, "w"), (2, "wr"), (1, "r"), (3, "r")]
"""Ranks that are started one group after the other, and whether they write, read or both: starting
is what costs."""
MISFITS = {
    "optimizer=sgd": (
        "The optimizer is SGD, 2 groups; the checkpoint was written with AdamW, 2 groups."
    ),
    "optimizer=lion": "The optimizer is Lion, 2 groups",
    "model.dim=32": "shape (19, 16) in the checkpoint",
    "model.num_layers=4": "the checkpoint does not have it",
}
STEPS = 3
PAIRS = [
    ("none", "none"),
    ("none", "fsdp x2"),
    ("ddp x2", "fsdp x3"),
    ("fsdp x2", "none"),
    ("fsdp x2", "ddp x2"),
    ("fsdp x2", "fsdp x2"),
    ("fsdp x2", "fsdp x3"),
    ("fsdp x2", "fsdp x3 again"),
    ("hybrid 2x2", "fsdp x1"),
    ("hybrid 2x2", "no_shard x2"),
]
"""Writers have whole tensors or shards, and so do readers: each kind meets each. One pair is read
again, for its random numbers."""
CHAIN = ("fsdp x2", "none", "ddp x3")
"""Two ranks wrote, one took it up and wrote again, three go on from there."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("resharding")


def place(root: Path, name: str) -> str:
    """A folder for a run, which is the same run wherever it is copied to."""
    return str(root / name / "name" / "id")


@pytest.fixture(scope="module")
def read(root):
    """State that each rank of each reader had from each writer's checkpoint."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for number, (count, acts) in enumerate(PHASES):
        writers = [name for name, (n, _) in WRITERS.items() if n == count and "w" in acts]
        readers = [name for name, (n, _) in READERS.items() if n == count and "r" in acts]
        pairs = [pair for pair in PAIRS if pair[1] in readers]
        tasks: list[Task] = [
            ("saved", {"folder": place(root, one), "overrides": WRITERS[one][1]}) for one in writers
        ]
        for writer, reader in pairs:
            paths = {"source": place(root, writer), "folder": place(root, f"{writer}-{reader}")}
            tasks.append(("loaded", {**paths, "overrides": READERS[reader][1]}))
        if REJECTING in readers:
            paths = {"source": place(root, "none"), "folder": place(root, "misfits")}
            tasks.append(("misfits", {**paths, "overrides": READERS[REJECTING][1]}))
            pairs.append(("misfits", REJECTING))
        if (count, acts) == PHASES[-1]:
            paths = {
                "source": place(root, f"{CHAIN[0]}-{CHAIN[1]}"),
                "folder": place(root, "chain"),
            }
            tasks.append(("loaded", {**paths, "overrides": ["strategy=ddp"], "steps": STEPS + 2}))
            pairs.append(CHAIN)
        results = together(count, root / f"phase-{number}", tasks)
        found |= dict(zip(pairs, results[len(writers) :], strict=True))
    return found


def test_a_changed_model_or_optimizer_is_rejected_on_all_ranks(read):
    for sentences in read["misfits", REJECTING]:
        assert sentences == read["misfits", REJECTING][0]
        for change, why in MISFITS.items():
            assert (
                "does not fit this configuration: " in sentences[change]
                and why in sentences[change]
            )


@pytest.mark.parametrize("writer", WRITERS)
def test_every_value_is_written_once(root, read, writer):
    found = stored(place(root, writer))
    assert found["written"] == found["numel"]
    assert any(name.endswith("exp_avg") for name in found["numel"])


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_tensors_are_equal_to_the_bit(root, read, writer, reader):
    expected = stored(place(root, writer))["tensors"]
    for rank in read[writer, reader]:
        assert rank["tensors"] == expected
        assert (rank["step"], rank["samples"], rank["last"]) == (STEPS, STEPS * 12, STEPS + 1)


def test_all_resume_with_the_same_samples(read):
    """Each sample of the whole batch belongs to one rank, once, before and after the number of
    ranks changes."""
    sets = {
        pair: sorted(sample for rank in ranks for sample in rank["taken"])
        for pair, ranks in read.items()
        if pair[0] in WRITERS
    }
    last = sets.pop(CHAIN)
    expected = sets["none", "none"]
    assert len(expected) == len(set(expected)) == 12
    assert {pair: taken == expected for pair, taken in sets.items()} == dict.fromkeys(sets, True)
    assert len(set(last)) == 12 and not set(last) & set(expected), "the chain continues behind them"


def test_two_ranks_then_one_then_three(root, read):
    between = stored(place(root, f"{CHAIN[0]}-{CHAIN[1]}"))["tensors"]
    assert between != stored(place(root, CHAIN[0]))["tensors"], "the one rank has trained"
    for rank in read[CHAIN]:
        assert rank["tensors"] == between
        assert (rank["step"], rank["samples"], rank["last"]) == (
            STEPS + 1,
            (STEPS + 1) * 12,
            STEPS + 2,
        )


def test_each_rank_has_random_numbers_of_its_own(read):
    same, more = read["fsdp x2", "fsdp x2"], read["fsdp x2", "fsdp x3"]
    assert [rank["rng"] for rank in more[:2]] == [rank["rng"] for rank in same]
    assert len({rank["rng"] for rank in more}) == 3
    assert [rank["rng"] for rank in read["fsdp x2", "fsdp x3 again"]] == [
        rank["rng"] for rank in more
    ]
