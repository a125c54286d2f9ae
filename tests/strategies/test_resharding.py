"""A checkpoint of one strategy and number of ranks goes into another, to the bit; what a rank has is what it should."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from strategies.drive import stored
from strategies.ranks import Task, together

WRITERS = {
    "none": (1, ["strategy=none"]),
    "ddp x2": (2, ["strategy=ddp"]),
    "fsdp x2": (2, ["strategy=fsdp"]),
    "hybrid 2x2": (4, ["strategy=fsdp", "strategy.replicate=2"]),
}
READERS = {
    "none": (1, ["strategy=none"]),
    "fsdp x1": (1, ["strategy=fsdp"]),
    "ddp x2": (2, ["strategy=ddp"]),
    "fsdp x2": (2, ["strategy=fsdp"]),
    "no_shard x2": (2, ["strategy=fsdp", "strategy.sharding=no_shard"]),
    "fsdp x3": (3, ["strategy=fsdp"]),
    "fsdp x3 again": (3, ["strategy=fsdp"]),
}
STEPS = 3


def by_ranks(table: dict[str, tuple[int, list[str]]]) -> dict[int, list[str]]:
    return {count: [name for name, (n, _) in table.items() if n == count] for count, _ in table.values()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("written")
    for count, names in by_ranks(WRITERS).items():
        tasks: list[Task] = [
            ("saved", {"folder": str(root / name), "overrides": WRITERS[name][1], "steps": STEPS}) for name in names
        ]
        together(count, root / f"ranks-{count}", tasks)
    return {name: root / name for name in WRITERS}


@pytest.fixture(scope="module")
def read(written: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Any]]:
    """What each rank of each reader had from each writer's checkpoint; a reader goes on, so it gets a copy."""
    root, found = tmp_path_factory.mktemp("read"), {}
    for count, readers in by_ranks(READERS).items():
        pairs = [(writer, reader) for writer in WRITERS for reader in readers]
        tasks: list[Task] = []
        for writer, reader in pairs:
            copy = root / f"{writer}-{reader}"
            shutil.copytree(written[writer], copy, symlinks=True)
            tasks.append(("loaded", {"folder": str(copy), "overrides": READERS[reader][1]}))
        found |= dict(zip(pairs, together(count, root / f"ranks-{count}", tasks), strict=True))
    return found


@pytest.mark.parametrize("writer", WRITERS)
def test_every_value_is_written_once(written: dict[str, Path], writer: str) -> None:
    found = stored(str(written[writer]))
    assert found["written"] == found["numel"]
    assert any(name.endswith("exp_avg") for name in found["numel"])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_tensors_are_equal_to_the_bit(
    written: dict[str, Path], read: dict[tuple[str, str], list[Any]], writer: str, reader: str
) -> None:
    expected = stored(str(written[writer]))["tensors"]
    for rank in read[writer, reader]:
        assert rank["tensors"] == expected
        assert (rank["step"], rank["samples"], rank["last"]) == (STEPS, STEPS * 12, 9)


def test_each_rank_has_random_numbers_of_its_own(read: dict[tuple[str, str], list[Any]]) -> None:
    same, more = read["fsdp x2", "fsdp x2"], read["fsdp x2", "fsdp x3"]
    assert [rank["rng"] for rank in more[:2]] == [rank["rng"] for rank in same]
    assert len({rank["rng"] for rank in more}) == 3
    assert [rank["rng"] for rank in read["fsdp x2", "fsdp x3 again"]] == [rank["rng"] for rank in more]
