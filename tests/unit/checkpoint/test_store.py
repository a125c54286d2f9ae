"""Commit, discovery, and what is left behind by a writer that dies."""

import os
import shutil
from dataclasses import replace

import pytest
import torch

from launcher.checkpoint.manifest import CorruptCheckpoint, is_small, verify
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import SaveFailed, Saver
from launcher.checkpoint.shards import write_tensors
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint, weights_digest
from launcher.process.ranks import Ranks
from launcher.strategies.base import ShardSpec
from support.stores import payload, save


@pytest.fixture
def store(tmp_path):
    """It has the steps 5 and 10."""
    store = CheckpointStore(tmp_path)
    save(store, 5, best=True)
    save(store, 10)
    return store


def test_save_and_read(store):
    found = store.newest_valid()
    assert found is not None and found[0].name == "step-00000010"
    stored = StoredCheckpoint(found[0])
    assert stored.meta == {"step": 10}
    assert torch.equal(stored.read("model/w"), torch.full((4,), 10.0))
    state = stored.rank_state(0)
    assert state is not None and torch.equal(state["rng"], torch.arange(3))
    assert stored.rank_state(1) is None
    assert (store.resolve_link("latest"), store.resolve_link("best")) == (10, 5)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "swap"])
@pytest.mark.parametrize(
    "name", ["shard-00000.safetensors", "rank-00000.json", "state.json", "manifest.json"]
)
def test_damage_is_found_named_and_set_aside(store, tmp_path, damage, name):
    file = store.path(10) / name
    if damage == "flip":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif damage == "truncate":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "delete":
        file.unlink()
    else:
        file.write_bytes((store.path(5) / name).read_bytes())
    if damage != "swap" or name != "rank-00000.json":  # equal in both
        with pytest.raises(CorruptCheckpoint, match=name.split(".")[0]):
            verify(store.path(10))
        found = store.newest_valid()
        assert found is not None and found[1].step == 5
        assert (tmp_path / "corrupt-step-00000010").is_dir() and store.resolve_link("latest") == 5


def test_store_ignores_files_that_the_manifest_does_not_list(tmp_path):
    """A checkpoint that was copied over another save of its step, by more ranks, has that one's
    files too."""
    store = CheckpointStore(tmp_path)
    save(store, 5)
    folder = store.path(5)
    spec = {"model/w": ShardSpec((4,), (2,))}
    write_tensors(folder / "shard-00001.safetensors", {"model/w": torch.zeros(2)}, spec)
    write_tensors(folder / "state.safetensors", {"other": torch.zeros(2)})
    (folder / "rank-00001.json").write_text("{}")
    stored, last = StoredCheckpoint(folder), torch.empty(3)
    stored.read_into("model/w", last, (1,))
    assert torch.equal(last, torch.full((3,), 5.0)) and stored.rank_state(1) is None


def test_store_without_a_valid_checkpoint_is_an_error(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.newest_valid() is None
    save(store, 5)
    (store.path(5) / "state.json").unlink()
    for _ in range(2):
        with pytest.raises(CorruptCheckpoint):
            CheckpointStore(tmp_path).newest_valid()
        CheckpointStore(tmp_path).recover()
        assert os.listdir(tmp_path) == ["corrupt-step-00000005"]


def test_saving_a_step_again(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 5, value=1.0)
    # Could not be deleted after an earlier save.
    shutil.copytree(store.path(5), tmp_path / ".replaced-step-00000005")
    save(store, 5, value=2.0)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-00000005"]
    assert torch.equal(StoredCheckpoint(store.path(5)).read("model/w"), torch.full((4,), 2.0))


def test_a_step_whose_second_save_fails_keeps_its_first(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 5, value=1.0)
    manifest, folder = verify(store.path(5)), store.begin(5)
    with pytest.raises(FileNotFoundError):
        store.commit(folder, manifest, check=lambda: shutil.rmtree(folder))
    newest = store.newest_valid()
    assert newest is not None and newest[0] == store.path(5)


def test_retention_deletes_nothing_for_a_checkpoint_that_has_lost_a_file(tmp_path, caplog):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    save(store, 2)
    (store.path(2) / "state.json").unlink()
    store.tidy(2, Retention())
    assert store.steps() == [1, 2] and "state.json is missing" in caplog.text


@pytest.mark.parametrize("folder", ["exists", "was removed"])
def test_a_run_that_was_taken_over_writes_nothing(tmp_path, folder):
    def taken_over() -> None:
        raise OSError("another process has the run")

    store = CheckpointStore(tmp_path / "checkpoints")
    if folder == "exists":
        save(store, 1)
    store.check_lock = taken_over
    with pytest.raises(SaveFailed, match="another process"):
        save(store, 2)
    existed = folder == "exists"
    assert store.root.exists() == existed and store.steps() == [1] * existed


def test_checkpoint_set_aside_is_taken_back_once_it_is_valid(store, tmp_path):
    for step in (5, 10):
        os.rename(store.path(step) / "state.json", tmp_path / f"{step}.json")
    with pytest.raises(CorruptCheckpoint):
        store.newest_valid()
    assert store.steps() == []
    os.rename(tmp_path / "10.json", tmp_path / "corrupt-step-00000010" / "state.json")
    newest = CheckpointStore(tmp_path).newest_valid()
    assert newest is not None and newest[0] == store.path(10) and store.resolve_link("latest") == 10


def test_checkpoint_that_cannot_be_loaded_is_not_taken_back_by_the_same_process(store, tmp_path):
    store.set_aside(store.path(10), CorruptCheckpoint("step-00000010", "cannot be read on rank 3"))
    newest = store.newest_valid()
    assert newest is not None and newest[1].step == 5


def test_all_files_of_one_that_was_set_aside_are_verified(store, tmp_path):
    shard = store.path(10) / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    store.set_aside(store.path(10), CorruptCheckpoint("step-00000010", "cannot be loaded"))
    newest = CheckpointStore(tmp_path).newest_valid(is_small)
    assert newest is not None and newest[1].step == 5


@pytest.mark.parametrize("damage", ["deep", "[]"])
def test_a_manifest_of_wrong_types_is_damage(store, tmp_path, damage):
    (store.path(10) / "manifest.json").write_text("[" * 100_000 if damage == "deep" else damage)
    newest = store.newest_valid()
    assert newest is not None and newest[1].step == 5
    assert (tmp_path / "corrupt-step-00000010").is_dir()


def test_a_copy_in_which_links_became_folders(tmp_path):
    """`cp -rL` and `scp -r` do that."""
    store = CheckpointStore(tmp_path / "here")
    for step in (5, 10, 15):
        save(store, step, best=step == 5)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    copy = CheckpointStore(tmp_path / "there")
    assert not (copy.root / "latest").is_symlink() and copy.best() == 5
    copy.recover()
    assert sorted(os.listdir(copy.root)) == sorted(os.listdir(store.root))
    assert (copy.resolve_link("best"), copy.resolve_link("latest")) == (5, 15)
    save(copy, 20)
    assert copy.resolve_link("latest") == 20


def test_the_only_checkpoint_is_a_copy_under_the_name_of_a_link(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 5)
    (tmp_path / "latest").unlink()
    store.path(5).rename(tmp_path / "latest")
    store.recover()
    assert store.steps() == [5] and store.resolve_link("latest") == 5


@pytest.mark.parametrize("wrong", ["missing", "dangling", "a file", "a folder", "an older one"])
def test_links_are_rebuilt(tmp_path, wrong):
    """`best` from what the newest checkpoint remembers."""
    store = CheckpointStore(tmp_path)
    for step in (5, 10, 15):
        save(store, step, best=step < 15)
    targets = {"dangling": "step-00000099", "an older one": "step-00000005"}
    for name in ("latest", "best") if wrong != "an older one" else ("latest",):
        (tmp_path / name).unlink()
        if wrong == "a file":
            (tmp_path / name).write_text("step-00000010")
        elif wrong == "a folder":
            (tmp_path / name).mkdir()
        elif wrong != "missing":
            os.symlink(targets[wrong], tmp_path / name)
    assert store.best() == 10
    store.recover()
    assert (store.resolve_link("latest"), store.resolve_link("best")) == (15, 10)
    assert (tmp_path / "corrupt-best").is_dir() == (wrong == "a folder")
    store.remove(10)
    assert store.best() == 5


def test_the_link_counts_more_than_what_a_checkpoint_remembers(store):
    """An evaluation after the save may have made it the best."""
    store.link("best", "step-00000010")
    store.recover()
    assert store.best() == 10


def test_rolling_back_sets_later_ones_aside(tmp_path):
    store = CheckpointStore(tmp_path)
    for step in (5, 10, 15, 20):
        save(store, step, best=step == 15)
    store.set_aside(store.path(20), CorruptCheckpoint("x"))
    assert store.abandon(5) == [f"abandoned-step-000000{step}" for step in (20, 15, 10)]
    assert store.steps() == [5] and store.resolve_link("latest") == 5
    assert not os.path.lexists(tmp_path / "best")
    assert store.abandon(5) == []
    save(store, 10)
    assert store.abandon(5) == ["abandoned-step-00000010.2"]


def test_a_removed_folder_is_created_again_for_the_next_save(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    save(store, 1)
    shutil.rmtree(store.root)
    save(store, 2)
    assert store.steps() == [2] and store.resolve_link("latest") == 2


def test_the_digest_is_of_the_weights_alone(tmp_path):
    def digest(tensors):
        store = CheckpointStore(tmp_path)
        Saver(store, Ranks(), Retention()).save(replace(payload(1), tensors=tensors), wait=True)
        return weights_digest(store.path(1))

    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(1, dtype=torch.bfloat16)
    expected = digest({"model/a": a, "model/b": b})
    assert digest({"model/b": b, "model/a": a, "optimizer/a/exp_avg": b}) == expected
    for other in (torch.zeros(2, 3), a.view(3, 2), a.view(torch.int32)):
        assert digest({"model/a": other, "model/b": b}) != expected
