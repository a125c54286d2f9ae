"""Verbs on a run in which a folder is a link to one of the reader, which is left alone."""

import base64
import json
import os

import pytest

from launcher.checkpoint.store import CheckpointStore
from launcher.runs.__main__ import VERBS
from support.pictures import png
from support.stores import save

SECRET = "a line of my own"
PICTURE = base64.b64encode(png(3, 2)).decode()
STARTS = {"resume", "evaluate", "export", "predict", "fork", "retry", "replay"}
"""Verbs that start a run: tests/end_to_end/test_foreign_links.py."""
FOLDERS = ("logs", "images", ".hydra", "export", "predictions", ".trackers", "tensorboard")
MORE = {
    "compare": ["bb"],
    "checkpoints": ["--delete", "--keep", "latest", "--yes"],
    "watch": ["--once"],
    "rollback": ["1"],
    "sync": ["tracker=tensorboard"],
}
"""Arguments of a verb after the run."""


@pytest.fixture
def linked(make_run, tmp_path, monkeypatch):
    """Makes a run with a link in the place of a folder; returns the folder that it leads to."""
    monkeypatch.chdir(tmp_path)
    folder, _ = (make_run("gpt", id) for id in ("aa", "bb"))
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "10").mkdir(parents=True)
    for name in ("launcher.log", "output.log", "config.yaml", "model.safetensors", "10/note.json"):
        (elsewhere / name).write_text(SECRET)
    (elsewhere / "10" / "a.png").write_bytes(png(3, 2))
    row = {"step": 10, "time": 1.8e9, "kind": "image", "key": "a", "path": "images/10/a.png"}
    (folder.path / "media.jsonl").write_text(json.dumps(row) + "\n")

    def make(name):
        if (folder.path / name).is_dir():
            (folder.path / name).rename(tmp_path / "moved")
        (folder.path / name).symlink_to(elsewhere)
        return elsewhere

    return make


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("name", FOLDERS)
def test_a_linked_folder_is_neither_read_nor_written(linked, runs, tmp_path, name):
    elsewhere = linked(name)
    before = content(elsewhere)
    for verb in VERBS.keys() - STARTS:
        words = [] if verb in ("list", "report", "watch") else ["aa"]
        code, output, error = runs(verb, *words, *MORE.get(verb, []))
        assert code in (0, 1, 2), (verb, error)
        assert SECRET not in output + error, verb
        assert code == 2 or verb not in ("logs", "compare", "reproduce", "rollback")
        assert content(elsewhere) == before, verb
    for page in tmp_path.rglob("*.html"):
        assert PICTURE not in page.read_text()


def test_linked_checkpoints_of_others_are_not_deleted(make_run, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, other = make_run("gpt", "aa"), make_run("gpt", "bb")
    for step in (1, 2, 3):
        save(CheckpointStore(other.checkpoints), step)
    folder.checkpoints.symlink_to(other.checkpoints)
    before = content(other.checkpoints)
    words = ("--delete", "--keep", "latest", "--yes", "--older=1s", "aa")
    os.utime(folder.record_path, (0, 0))
    _, output, error = runs("checkpoints", *words)
    assert "a link to a place that your signature does not name" in output, error
    assert runs("rollback", "aa", "1")[0] == 2
    assert content(other.checkpoints) == before
