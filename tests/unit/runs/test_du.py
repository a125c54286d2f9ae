"""`runs du`: what runs take, by run and by group."""

import json
import os
from pathlib import Path
from typing import Any

import pytest


def fill(folder: Any, steps: int, num_bytes: int = 1000) -> None:
    for step in range(1, steps + 1):
        checkpoint = folder.checkpoints / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "shard").write_bytes(b"x" * num_bytes)


@pytest.fixture
def filled(make_run: Any) -> None:
    """Three runs: two of a sweep."""
    fill(make_run("gpt", "aa", config={"run": {"sweep": "s1"}}), 2)
    fill(make_run("gpt", "bb", config={"run": {"sweep": "s1"}}, state="preempted"), 5)
    fill(make_run("mlp", "cc", config={"run": {"sweep": None}}), 1)


def test_runs_are_listed_by_size(filled: None, runs: Any) -> None:
    code, out, err = runs("du")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert [line[1] for line in lines[1:4]] == ["bb", "aa", "cc"]
    assert lines[1][:6] == ["gpt", "bb", "preempted", "5", "5.0", "kB"]
    assert lines[-1][:4] == ["total", "8", "8.0", "kB"]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("sweep", {"s1": (2, 7), "-": (1, 1)}),
        ("state", {"preempted": (1, 5), "completed": (2, 3)}),
        ("name", {"gpt": (2, 7), "mlp": (1, 1)}),
    ],
)
def test_groups_add_up(
    filled: None, runs: Any, outputs: Path, by: str, expected: dict[str, Any]
) -> None:
    groups = json.loads(runs("du", "--by", by, "--json")[1])
    assert {each[by]: (each["runs"], each["checkpoints"]) for each in groups} == expected
    assert [each["checkpoint_bytes"] for each in groups] == [
        count * 1000 for _, count in expected.values()
    ]
    total = sum(
        file.lstat().st_size for file in outputs.rglob("*") if file.is_file() or file.is_symlink()
    )
    assert sum(each["bytes"] for each in groups) == total


def test_user_is_the_owner_of_the_folder(filled: None, runs: Any, outputs: Path) -> None:
    (group,) = json.loads(runs("du", "--by", "user", "--json")[1])
    assert group["user"] == outputs.owner()


def test_a_filter_chooses(filled: None, runs: Any) -> None:
    assert [each["id"] for each in json.loads(runs("du", "mlp", "--json")[1])] == ["cc"]


def test_checkpoints_at_another_place_are_counted(make_run: Any, runs: Any, tmp_path: Path) -> None:
    folder = make_run("gpt", "aa")
    fill(folder, 3)
    os.rename(folder.checkpoints, tmp_path / "elsewhere")
    folder.checkpoints.symlink_to(tmp_path / "elsewhere")
    (row,) = json.loads(runs("du", "--json")[1])
    assert (row["checkpoints"], row["checkpoint_bytes"]) == (3, 3000)
    assert row["bytes"] > 3000


def test_du_without_runs(outputs: Path, runs: Any) -> None:
    outputs.mkdir()
    code, out, err = runs("du")
    assert (code, out) == (0, "")
    assert "no runs" in err
