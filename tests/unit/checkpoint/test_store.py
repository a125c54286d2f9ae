"""Commit, discovery, and what is left behind by a writer that dies."""

from pathlib import Path

import pytest
import torch

from launcher.checkpoint.manifest import CorruptCheckpoint, verify
from launcher.checkpoint.saver import SaveFailed
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint, weights_digest
from support.stores import save


def test_save_and_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 5, best=True)
    save(store, 10)
    found = store.newest_valid()
    assert found is not None and found[0].name == "step-00000010"
    stored = StoredCheckpoint(found[0])
    assert stored.meta == {"step": 10} and torch.equal(stored.read("model/w"), torch.full((4,), 10.0))
    state = stored.rank_state(0)
    assert state is not None and torch.equal(state["rng"], torch.arange(3)) and stored.rank_state(1) is None
    assert (store.linked("latest"), store.linked("best")) == (10, 5)
    assert weights_digest(store.path(5)) != weights_digest(store.path(10))


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "swap"])
@pytest.mark.parametrize("name", ["shard-00000.safetensors", "rank-00000.json", "state.json", "manifest.json"])
def test_damage_is_found_named_and_set_aside(tmp_path: Path, damage: str, name: str) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 5)
    save(store, 10)
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
        assert (tmp_path / "corrupt-step-00000010").is_dir()


def test_any_flipped_bit_of_the_manifest_shows(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 5)
    file = store.path(5) / "manifest.json"
    good = file.read_bytes()
    for position in range(len(good)):
        if not good[position : position + 1].isspace():
            file.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
            with pytest.raises(CorruptCheckpoint):
                verify(store.path(5))


def test_none_left_is_an_error_and_stays_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.newest_valid() is None
    save(store, 5)
    (store.path(5) / "state.json").unlink()
    for _ in range(2):
        with pytest.raises(CorruptCheckpoint):
            store.newest_valid()


def test_saving_a_step_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 5, value=1.0)
    save(store, 5, value=2.0)
    assert torch.equal(StoredCheckpoint(store.path(5)).read("model/w"), torch.full((4,), 2.0))


def test_recovery_after_a_writer_that_died(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 5)
    store.path(5).rename(tmp_path / ".replaced-step-00000005")  # killed between the two renames
    store.begin(10)
    store.recover()
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["latest", "step-00000005"]
    verify(store.path(5))


def test_pruning_spares_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, best=True, keep=1)
    for step in (2, 3, 4):
        save(store, step, keep=1)
    assert store.steps() == [1, 3, 4]


def test_a_failed_write_says_where(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    (tmp_path / ".tmp-step-00000002-2").write_text("a file where the folder should be")
    with pytest.raises(SaveFailed, match="rank 0"):
        save(store, 2)
    assert store.newest_valid() is not None
