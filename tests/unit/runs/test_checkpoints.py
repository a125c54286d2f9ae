"""`verify` and `list-checkpoints`: what they say of a run's checkpoints."""

import json
import shutil

import pytest
import torch

from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest
from launcher.checkpoint.shards import write_tensors
from launcher.checkpoint.store import CheckpointStore


@pytest.fixture
def store(make_run):
    """A run with the checkpoints of steps 2 and 4; the first is the best."""
    store = CheckpointStore(make_run("gpt", "aa").checkpoints)
    for step in (2, 4):
        part = store.begin(step)
        entry = write_tensors(
            part / "shard-00000.safetensors", {"model/w": torch.full((100,), float(step))}
        )
        final = store.commit(
            part, Manifest(step, 1, "none", "sharded", samples=step * 32, files=[entry])
        )
        store.link("latest", final.name)
    store.link("best", store.path(2).name)
    return store


def test_all_is_well(store, runs):
    code, output, error = runs("verify", "aa")
    assert (code, error) == (0, "")
    lines = output.splitlines()
    assert [line.split("  ")[0] for line in lines] == [str(store.path(2)), str(store.path(4))]
    assert all("  ok, " in line for line in lines)


@pytest.mark.parametrize("quick", [False, True])
def test_verify_names_the_damage(store, runs, quick):
    shard = store.path(2) / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    (store.path(4) / "shard-00000.safetensors").unlink()
    code, output, _ = runs("verify", "aa", *["--quick"] * quick)
    first, second = output.splitlines()
    assert code == 1 and second.endswith("  shard-00000.safetensors is missing")
    assert ("  ok, " if quick else "shard-00000.safetensors has changed") in first


def test_verify_shows_leftovers_of_saves(store, runs):
    store.set_aside(store.path(4), CorruptCheckpoint("x"))
    store.begin(6)
    code, output, _ = runs("verify", "aa")
    assert code == 1, "latest leads nowhere"
    assert "latest  points to step-00000004, which does not exist" in output
    assert "corrupt-step-00000004  set aside: it verifies now" in output
    assert "being written, or left by a process that was killed" in output
    store.recover()
    assert runs("verify", "aa")[0] == 0


def test_verify_of_a_run_without_checkpoints(make_run, runs):
    make_run("gpt", "aa")
    code, output, _ = runs("verify", "aa")
    assert code == 0 and output.endswith("no checkpoint\n")
    assert runs("list-checkpoints", "aa") == (0, "", "")


@pytest.mark.parametrize(
    "words",
    [["replay"], ["verify"]],
    ids=lambda words: words[0],
)
def test_checkpoints_on_another_machine(make_run, runs, tmp_path, words):
    """`hooks.checkpointing.path` is a folder that this machine does not have."""
    folder = make_run("gpt", "aa")
    folder.checkpoints.symlink_to(tmp_path / "scratch" / "aa")
    code, output, errors = runs(words[0], "aa", *words[1:])
    assert code == (1 if words == ["verify"] else 2)
    assert f"points to {tmp_path}/scratch/aa, " in output + errors


def test_the_list(store, runs):
    store.set_aside(store.path(4), CorruptCheckpoint("x"))
    shutil.copytree(store.path(2), store.path(6))
    (store.path(6) / "manifest.json").unlink()
    _, output, _ = runs("list-checkpoints", "aa")
    rows = [line.split() for line in output.splitlines()]
    assert rows[0] == ["folder", "size", "age", "ranks", "strategy", "samples", "note"]
    assert rows[1][0] == "step-00000002" and rows[1][-4:] == ["1", "none", "64", "best"]
    assert rows[2][0] == "step-00000006" and "without a manifest" in output.splitlines()[2]
    assert rows[3][0] == "corrupt-step-00000004" and "set aside" in output.splitlines()[3]
    found = json.loads(runs("list-checkpoints", "aa", "--json")[1])
    assert [row["step"] for row in found] == [2, None, 4] and found[0]["bytes"] > 400


def test_verify_takes_a_filter_and_prints_a_row_for_each_run(store, make_run, runs):
    make_run("gpt", "bb", config={"run": {"sweep": "lr"}})
    make_run("mlp", "cc", state="failed")
    (store.path(4) / "shard-00000.safetensors").unlink()
    code, output, _ = runs("verify", "state=completed", "gpt")
    bad, *rows = output.splitlines()
    assert code == 1 and bad == f"{store.path(4)}  shard-00000.safetensors is missing"
    assert [row.split() for row in rows] == [
        ["name", "id", "valid", "size", "result"],
        ["gpt", "aa", "1", *rows[1].split()[3:-2], "1", "damaged"],
        ["gpt", "bb", "0", "0", "B", "no", "checkpoint"],
    ]
    code, output, _ = runs("verify", "sweep=lr")
    assert (code, output.count("\n")) == (0, 1) and output.endswith(
        "bb/checkpoints  no checkpoint\n"
    )
    code, output, _ = runs("verify", "state=completed", "--json")
    found = [json.loads(line) for line in output.splitlines()]
    assert [(row["run"], row["bad"]) for row in found] == [
        ("gpt/aa", False),
        ("gpt/aa", True),
        ("gpt/bb", False),
    ]
    assert found[0]["size"] > 400 and found[1]["size"] is None
    assert runs("verify", "state=paused") == (
        2,
        "",
        f"'state=paused': selects no run in {store.root.parents[2]}.\n",
    )
