"""Which checkpoint is meant, and the sentence for one that cannot be used."""

import shutil
from pathlib import Path

import pytest

from launcher.checkpoint.find_checkpoint import find_checkpoint
from launcher.checkpoint.store import CheckpointStore
from launcher.errors import ConfigError
from support.stores import change_manifest, save


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    for step in (5, 10, 1400):
        save(store, step, best=step == 10)
    return store


@pytest.mark.parametrize(
    "which", ["latest", "best", "5", 5, "step-00000005", "checkpoints/step-00000005"]
)
def test_ways_to_name_one(store, which):
    step = {"latest": 1400, "best": 10}.get(which, 5)
    (store.root / "latest").unlink()  # the links are not needed
    assert find_checkpoint(store.root, which, "key") == store.path(step)


def test_by_path(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (store.path(5), Path("run/checkpoints/step-00000005"), store.root / "best"):
        step = 10 if path.name == "best" else 5
        assert find_checkpoint(store.root, path, "key") == store.path(step)
    elsewhere = tmp_path / "mine"
    shutil.copytree(store.path(5), elsewhere)
    assert find_checkpoint(store.root, elsewhere, "key") == elsewhere


@pytest.mark.parametrize("which", ["latest", "best", "7", "lastest", "/no/where"])
def test_find_reports_a_checkpoint_that_does_not_exist(store, tmp_path, which):
    with pytest.raises(ConfigError, match=f"^key={which}: .*empty has no checkpoint"):
        find_checkpoint(tmp_path / "empty" / "checkpoints", which, "key")
    if which not in ("latest", "best"):
        with pytest.raises(ConfigError, match="it has step-00000005, step-00000010, step-00001400"):
            find_checkpoint(store.root, which, "key")


@pytest.mark.parametrize("damage", ["changed byte", "manifest is a folder", "newer"])
def test_find_reports_a_damaged_checkpoint_in_one_message(store, damage):
    folder = store.path(1400)
    if damage == "changed byte":
        shard = folder / "shard-00000.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    elif damage == "newer":
        change_manifest(folder, format_version=99)
    else:
        (folder / "manifest.json").unlink()
        (folder / "manifest.json").mkdir()
    reason = (
        "is written by another version of Launcher .*format_version 99.* Nothing was renamed"
        if damage == "newer"
        else "key=latest: .*step-00001400 is damaged: .*\\. Use another"
    )
    with pytest.raises(ConfigError, match=reason):
        find_checkpoint(store.root, "latest", "key")
    assert folder.is_dir(), "nothing is renamed"
