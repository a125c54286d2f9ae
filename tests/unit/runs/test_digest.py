"""`runs checkpoints --digest`: which weights have equal digests."""

import json

import pytest
import torch

from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.shards import write_tensors
from launcher.checkpoint.store import CheckpointStore

WEIGHTS = {"model/layer.weight": torch.arange(6.0).reshape(2, 3), "model/layer.bias": torch.ones(2)}


def save(folder, step, weights):
    store = CheckpointStore(folder.checkpoints)
    part = store.begin(step)
    entry = write_tensors(part / "shard-00000.safetensors", weights)
    final = store.commit(part, Manifest(step, 1, "none", "sharded", files=[entry]))
    store.link("latest", final.name)
    return final


@pytest.fixture
def digest(runs):
    def call(*arguments):
        code, output, error = runs("checkpoints", "--digest", *arguments)
        assert (code, error) == (0, "")
        return [line.split("  ") for line in output.splitlines()]

    return call


def test_equal_weights_have_equal_digests(make_run, digest):
    reordered = dict(reversed(WEIGHTS.items())) | {"optimizer/layer.weight/exp_avg": torch.zeros(2)}
    paths = [
        save(make_run("gpt", id), 3, weights)
        for id, weights in (("aa", WEIGHTS), ("bb", reordered))
    ]
    (first, *_), (second, *_) = found = digest()
    assert first == second and len(first) == 64
    assert [path for _, path in found] == [str(path) for path in paths]


@pytest.mark.parametrize(
    "other",
    [
        {"model/layer.weight": torch.arange(6.0).reshape(3, 2)},
        {"model/layer.weight": torch.arange(6).reshape(2, 3).to(torch.bfloat16)},
        {"model/layer.weight": torch.arange(6.0).reshape(2, 3) + 1e-6},
        {"model/another": torch.ones(2)},
    ],
)
def test_other_weights_have_other_digests(make_run, digest, other):
    save(make_run("gpt", "aa"), 3, WEIGHTS)
    save(make_run("gpt", "bb"), 3, WEIGHTS | other)
    (first, _), (second, _) = digest()
    assert first != second


def test_which_checkpoints(make_run, digest, runs):
    folder = make_run("gpt", "aa")
    paths = {step: save(folder, step, WEIGHTS) for step in (2, 4, 6)}
    store = CheckpointStore(folder.checkpoints)
    store.link("best", paths[4].name)
    for which, step in (("latest", 6), ("best", 4), ("2", 2), ("step-00000004", 4)):
        assert [path for _, path in digest("aa", "--at", which)] == [str(paths[step])]
    (folder.checkpoints / "latest").unlink()
    assert digest("aa", "--at", "latest")[0][1] == str(paths[6])
    assert [path for _, path in digest("aa")] == [*map(str, paths.values())]
    found = json.loads(runs("checkpoints", "--digest", "--json")[1])
    assert [row["digest"] for row in found] == [value for value, _ in digest("aa")]


def test_digest_of_a_run_without_a_checkpoint(make_run, runs):
    folder = make_run("gpt", "aa")
    message = f"--at=latest: {folder.path} has no checkpoint.\n"
    assert runs("checkpoints", "--digest", "--at", "latest", "aa") == (2, "", message)


def test_rot_is_not_taken_for_other_weights(make_run, runs):
    path = save(make_run("gpt", "aa"), 3, WEIGHTS)
    with open(path / "shard-00000.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    code, output, error = runs("checkpoints", "--digest", "aa")
    assert (code, output) == (1, "") and "shard-00000.safetensors has changed" in error
    assert '"digest": null' in runs("checkpoints", "--digest", "--json", "aa")[1]
