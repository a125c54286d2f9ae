"""Changes that the manifest detects: of itself, of each file, and a name outside its folder."""

import re
from typing import Any

import pytest

from launcher.checkpoint.durable_files import write_file
from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, UnsupportedCheckpoint, verify
from launcher.checkpoint.store import CheckpointStore
from support.stores import ABSENT, change_manifest, save


def test_any_flipped_bit_of_the_manifest_shows(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 5)
    file = store.path(5) / "manifest.json"
    good = file.read_bytes()
    for position in range(len(good)):
        if not good[position : position + 1].isspace():
            file.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
            with pytest.raises(CorruptCheckpoint):
                Manifest.read(store.path(5))


def test_each_fault_is_named_also_where_no_file_is_read(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 5)
    (store.path(5) / "rank-00000.json").unlink()
    with open(store.path(5) / "shard-00000.safetensors", "ab") as file:
        file.write(b"x")
    (store.path(5) / "state.json").unlink()
    (store.path(5) / "state.json").mkdir()
    with pytest.raises(CorruptCheckpoint) as caught:
        verify(store.path(5), hashes=False)
    assert re.fullmatch(
        "rank-00000.json is missing; shard-00000.safetensors has .* bytes, should have .*;"
        " state.json is not a file",
        caught.value.problem,
    )


OTHER_FORMATS: dict[str, tuple[dict[str, Any], str]] = {
    "a newer number": ({"format_version": 99, "mood": "good"}, "format_version 99, and this one"),
    "an older number": ({"format_version": 0}, "format_version 0, and this one"),
    "no number": ({"format_version": ABSENT}, "format_version None"),
    "a text": ({"format_version": "1"}, "format_version 1"),
    "an unknown field": ({"rollbacks": 0}, "it has rollbacks"),
    "a missing field": ({"samples": ABSENT}, "it lacks samples"),
    "both": ({"mood": "good", "files": ABSENT}, "it has mood and it lacks files"),
    "a field of a file": ({"files": [{"name": "a", "size": 1, "xxh3": "", "mood": 1}]}, "mood"),
    "a file that is a number": ({"files": [1]}, "written by another"),
}


@pytest.mark.parametrize(("values", "difference"), OTHER_FORMATS.values(), ids=OTHER_FORMATS)
def test_a_checkpoint_of_another_version_is_not_damaged(values, difference, tmp_path):
    """Its checksum matches, so it is as another version wrote it."""
    store = CheckpointStore(tmp_path)
    save(store, 4)
    save(store, 5)
    change_manifest(store.path(5), **values)
    with pytest.raises(UnsupportedCheckpoint, match=difference) as caught:
        store.newest_valid()
    assert "written by another version of Launcher" in str(caught.value)
    assert store.steps() == [4, 5], "nothing was set aside"
    file = store.path(5) / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"step": 5', b'"step": 6'))
    with pytest.raises(CorruptCheckpoint):
        Manifest.read(store.path(5))


@pytest.mark.parametrize("parent", ["absolute", ".."])
def test_a_manifest_names_no_file_outside_its_folder(tmp_path, parent):
    store = CheckpointStore(tmp_path)
    save(store, 5)
    outside = write_file(tmp_path / "outside", [b"x"])
    name = str(tmp_path / "outside") if parent == "absolute" else "../outside"
    entry = {"name": name, "size": outside.size, "xxh3": outside.xxh3}
    change_manifest(store.path(5), files=[entry])
    with pytest.raises(CorruptCheckpoint, match="is outside the folder"):
        verify(store.path(5))
