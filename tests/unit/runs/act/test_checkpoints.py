"""`runs checkpoints`: the table, what is verified, and which weights have equal digests."""

import shutil

import pytest
import torch

from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest
from launcher.checkpoint.shards import write_tensors
from launcher.checkpoint.store import CheckpointStore
from support.stores import change_manifest

WEIGHTS = {"model/layer.weight": torch.arange(6.0).reshape(2, 3), "model/layer.bias": torch.ones(2)}


def save(folder, step, weights):
    store = CheckpointStore(folder.checkpoints)
    part = store.begin(step)
    entry = write_tensors(part / "shard-00000.safetensors", weights)
    manifest = Manifest(step, 1, "none", "sharded", samples=step * 32, files=[entry])
    final = store.commit(part, manifest)
    store.link("latest", final.name)
    return final


@pytest.fixture
def store(make_run):
    """A run with the checkpoints of steps 2 and 4; the first is the best."""
    folder = make_run("gpt", "aa")
    for step in (2, 4):
        save(folder, step, {"model/w": torch.full((100,), float(step))})
    store = CheckpointStore(folder.checkpoints)
    store.link("best", store.path(2).name)
    return store


def rows_of(output):
    return [line.split() for line in output.splitlines()]


def states_of(output):
    return [line.split("  ")[-1].strip() for line in output.splitlines()[1:]]


def test_the_table(store, runs):
    code, output, error = runs("checkpoints", "aa")
    heading, first, second, total = rows_of(output)
    assert (code, error) == (0, "")
    assert heading == ["run", "step", "size", "age", "state"]
    assert (first[:2], first[-1]) == (["gpt/aa", "2"], "best")
    assert (second[:2], second[-1]) == (["gpt/aa", "4"], "latest")
    assert (total[0], total[-5:]) == ("total", ["2", "checkpoints", "of", "1", "run"])
    assert rows_of(runs("checkpoints", "--at", "best")[1])[1] == first
    code, output, _ = runs("checkpoints", "--verify")
    assert code == 0 and states_of(output)[:2] == ["whole, best", "whole, latest"]


@pytest.mark.parametrize("reads", [False, True])
def test_damage_is_named(store, runs, reads):
    shard = store.path(2) / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    (store.path(4) / shard.name).unlink()
    code, output, error = runs("checkpoints", "aa", *["--verify"] * reads)
    total = f"{1 + reads} damaged of 2 checkpoints of 1 run"
    assert states_of(output) == ["damaged, best" if reads else "best", "damaged, latest", total]
    *changed, missing = error.splitlines()
    assert missing.startswith(f"{store.path(4)}: ") and "is missing" in missing
    assert len(changed) == code == reads and all("(checksum)" in line for line in changed)
    assert runs("checkpoints", "--verify", "--at", "4")[0] == 1
    code, output, error = runs("checkpoints", "--digest", "--at", "2")
    assert (code, output) == (1, "") and "shard-00000.safetensors has changed" in error


def test_what_was_set_aside_or_left_over_is_listed(store, runs):
    store.set_aside(store.path(4), CorruptCheckpoint("x"))
    shutil.copytree(store.path(2), store.path(6))
    (store.path(6) / "manifest.json").unlink()
    shutil.copytree(store.path(2), store.root / "abandoned-step-00000002.2")
    store.begin(8)
    code, output, _ = runs("checkpoints", "aa", "--verify")
    steps = [row[1] for row in rows_of(output)[1:]]
    found = {*zip(steps, states_of(output), strict=True)}
    assert code == 1 and found >= {
        *(("6", "damaged, latest"), ("-", "damaged, latest leads nowhere")),
        *(("4", "whole, set aside"), ("2", "whole, abandoned"), ("8", "unfinished")),
    }
    assert output.endswith("  2 damaged of 2 checkpoints of 1 run\n")
    shutil.rmtree(store.path(6))
    store.recover()
    assert runs("checkpoints", "aa", "--verify")[0] == 0


def test_a_run_without_checkpoints(make_run, runs):
    make_run("gpt", "aa")
    assert runs("checkpoints", "aa", "--verify") == (0, "", "There are no checkpoints.\n")
    code, output, error = runs("checkpoints", "--digest", "--at", "latest", "aa")
    assert (code, output) == (2, "") and error.startswith("--at=latest: ")
    save(make_run("gpt", "bb"), 3, WEIGHTS)
    code, output, _ = runs("checkpoints", "--at", "3")
    assert code == 0 and "gpt/bb" in output and "gpt/aa" not in output, "runs that have it"


@pytest.mark.parametrize(
    ("verb", "option", "code"), [("replay", [], 2), ("checkpoints", ["--verify"], 1)]
)
def test_checkpoints_on_another_machine(make_run, runs, tmp_path, verb, option, code):
    """`hooks.checkpointing.path` is a folder that this machine does not have."""
    make_run("gpt", "aa").checkpoints.symlink_to(tmp_path / "scratch" / "aa")
    found, output, errors = runs(verb, "aa", *option)
    assert found == code and f"points to {tmp_path}/scratch/aa, " in output + errors


def test_another_format_is_not_damaged_and_not_verified(store, runs):
    change_manifest(store.path(4), format_version=99)
    code, output, error = runs("checkpoints", "aa", "--verify")
    assert code == 1 and "format_version 99" in error
    assert states_of(output)[:2] == ["whole, best", "of another version, latest"]
    assert "damaged" not in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--verify", "--digest"], "argument --digest: not allowed with argument --verify"),
        (["--yes"], "--yes: is an option of --delete."),
        (["--keep", "best"], "--keep: is an option of --delete."),
        (["--older", "0s"], "--older: is an option of --delete."),
        (["--at", "lastest"], "it has step-00000002, step-00000004"),
    ],
)
def test_bad_options_are_rejected(store, runs, words, message):
    code, output, error = runs("checkpoints", *words)
    assert (code, output) == (2, "") and message in error


# ---------------------------------------------------------------------------------------- digests
@pytest.fixture
def digest(runs):
    def call(*arguments):
        code, output, error = runs("checkpoints", "--digest", *arguments)
        assert (code, error) == (0, "")
        return [line.split("  ") for line in output.splitlines()]

    return call


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        ({"optimizer/layer.weight/exp_avg": torch.zeros(2)}, True),
        ({"model/layer.weight": torch.arange(6.0).reshape(3, 2)}, False),
        ({"model/layer.weight": torch.arange(6).reshape(2, 3).to(torch.bfloat16)}, False),
        ({"model/layer.weight": torch.arange(6.0).reshape(2, 3) + 1e-6}, False),
        ({"model/another": torch.ones(2)}, False),
    ],
)
def test_equal_weights_have_equal_digests(make_run, digest, other, is_equal):
    both = WEIGHTS, dict(reversed(WEIGHTS.items())) | other
    paths = [
        save(make_run("gpt", id), 3, weights)
        for id, weights in zip(("aa", "bb"), both, strict=True)
    ]
    (first, _), (second, _) = found = digest()
    assert len(first) == 64 and (first == second) == is_equal
    assert [path for _, path in found] == [*map(str, paths)]


def test_which_checkpoints(make_run, digest):
    folder = make_run("gpt", "aa")
    paths = {step: str(save(folder, step, WEIGHTS)) for step in (2, 4, 6)}
    CheckpointStore(folder.checkpoints).link("best", "step-00000004")
    for which, step in (("latest", 6), ("best", 4), ("2", 2), ("step-00000004", 4)):
        assert [path for _, path in digest("aa", "--at", which)] == [paths[step]]
    (folder.checkpoints / "latest").unlink()
    assert digest("aa", "--at", "latest")[0][1] == paths[6]
    assert [path for _, path in digest("aa")] == [*paths.values()]
