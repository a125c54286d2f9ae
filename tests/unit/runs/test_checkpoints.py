"""`runs checkpoints`: the table, and what is verified."""

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


def rows_of(output):
    return [line.split() for line in output.splitlines()]


def test_the_table(store, runs):
    code, output, error = runs("checkpoints", "aa")
    heading, first, second, total = rows_of(output)
    assert (code, error) == (0, "")
    assert heading == ["run", "step", "size", "age", "state"]
    assert (first[:2], first[-1]) == (["gpt/aa", "2"], "best")
    assert (second[:2], second[-1]) == (["gpt/aa", "4"], "latest")
    assert (total[0], total[-5:]) == ("total", ["2", "checkpoints", "of", "1", "run"])
    assert runs("checkpoints", store.root.parent)[1] == output
    assert rows_of(runs("checkpoints", "--at", "best")[1])[1] == first
    code, output, _ = runs("checkpoints", "--verify")
    assert code == 0
    assert [row[-2:] for row in rows_of(output)[1:3]] == [["whole,", "best"], ["whole,", "latest"]]


@pytest.mark.parametrize("reads", [False, True])
def test_damage_is_named(store, runs, reads):
    shard = store.path(2) / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    (store.path(4) / "shard-00000.safetensors").unlink()
    code, output, error = runs("checkpoints", "aa", *["--verify"] * reads)
    states = [line.split("  ")[-1].strip() for line in output.splitlines()[1:]]
    changed = f"{shard.parent}: {shard.name} has changed since it was written (checksum)\n"
    assert states == [
        "damaged, best" if reads else "best",
        "damaged, latest",
        f"{1 + reads} damaged of 2 checkpoints of 1 run",
    ]
    assert error == f"{changed * reads}{store.path(4)}: {shard.name} is missing\n"
    assert code == reads
    assert runs("checkpoints", "--verify", "--at", "4")[0] == 1


def test_what_was_set_aside_or_left_over_is_listed(store, runs):
    store.set_aside(store.path(4), CorruptCheckpoint("x"))
    shutil.copytree(store.path(2), store.path(6))
    (store.path(6) / "manifest.json").unlink()
    shutil.copytree(store.path(2), store.root / "abandoned-step-00000002.2")
    store.begin(8)
    code, output, _ = runs("checkpoints", "aa", "--verify")
    assert code == 1
    for row in (
        "6 damaged, latest",
        "- damaged, latest leads nowhere",
        "4 whole, set aside",
        "2 whole, abandoned",
        "8 unfinished",
    ):
        step, _, state = row.partition(" ")
        assert any(
            line.split()[1] == step and line.endswith(f"  {state}") for line in output.splitlines()
        ), (row, output)
    assert output.endswith("  2 damaged of 2 checkpoints of 1 run\n")
    found = json.loads(runs("checkpoints", "aa", "--json")[1])
    assert [(row["step"], row["damaged"]) for row in found][:2] == [(2, False), (6, True)]
    assert (found[0]["bytes"] > 400, found[0]["samples"], found[0]["state"]) == (True, 64, ["best"])
    shutil.rmtree(store.path(6))
    store.recover()
    assert runs("checkpoints", "aa", "--verify")[0] == 0


def test_a_newer_format_is_damaged_for_this_version_alone(store, runs):
    manifest = json.loads((store.path(4) / "manifest.json").read_text())
    (store.path(4) / "manifest.json").write_text(json.dumps(manifest | {"format_version": 99}))
    code, output, error = runs("checkpoints", "aa", "--verify")
    assert code == 1 and "this checkpoint has format version 99" in error
    assert [line.split("  ")[-1] for line in output.splitlines()[1:3]] == [
        "whole, best",
        "damaged, latest",
    ]


def test_a_run_without_checkpoints(make_run, runs):
    make_run("gpt", "aa")
    assert runs("checkpoints", "aa", "--verify") == (0, "", "There are no checkpoints.\n")
    assert runs("checkpoints", "aa", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    "words",
    [["replay"], ["checkpoints", "--verify"]],
    ids=lambda words: words[0],
)
def test_checkpoints_on_another_machine(make_run, runs, tmp_path, words):
    """`hooks.checkpointing.path` is a folder that this machine does not have."""
    folder = make_run("gpt", "aa")
    folder.checkpoints.symlink_to(tmp_path / "scratch" / "aa")
    code, output, errors = runs(words[0], "aa", *words[1:])
    assert code == (1 if "--verify" in words else 2)
    assert f"points to {tmp_path}/scratch/aa, " in output + errors


def test_a_filter_selects_runs(store, make_run, runs):
    make_run("gpt", "bb", config={"run": {"sweep": "lr"}})
    second = make_run("mlp", "cc", config={"run": {"sweep": "lr"}})
    shutil.copytree(store.root, second.checkpoints, symlinks=True)
    assert {row[0] for row in rows_of(runs("checkpoints")[1])[1:]} == {"gpt/aa", "mlp/cc", "total"}
    output = runs("checkpoints", "sweep=lr", "state=completed")[1]
    assert [row[0] for row in rows_of(output)[1:]] == ["mlp/cc", "mlp/cc", "total"]
    assert output.endswith("2 checkpoints of 1 run\n")
    assert runs("checkpoints", "--verify", "state=paused") == (
        2,
        "",
        f"'state=paused': selects no run in {store.root.parents[2]}.\n",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--yes"], "--yes: is an option of --delete."),
        (["--keep", "best"], "--keep: is an option of --delete."),
        (["--older", "0s"], "--older: is an option of --delete."),
        (["--verify", "--digest"], "argument --digest: not allowed with argument --verify"),
        (["--at", "3"], "has no such checkpoint; it has step-00000002, step-00000004."),
        (["--at", "lastest"], "did you mean latest?"),
    ],
)
def test_bad_options_are_rejected(store, runs, words, message):
    code, output, error = runs("checkpoints", *words)
    assert (code, output) == (2, "") and message in error
