"""Verbs on a run folder with damaged files: no traceback."""

import json
import os
import shutil
import sys

import pytest

from launcher.runs.__main__ import VERBS
from support.pictures import png

pytestmark = pytest.mark.slow

STARTS = {
    *("resume", "evaluate", "export", "predict", "fork", "retry", "replay", "reproduce"),
    # its argument is a file
    "check",
}
"""Verbs that start a run: tests/end_to_end/test_damaged_files.py."""
FILES = (
    "run.json", "run.lock", "note.json", "metrics.jsonl", "chain.jsonl", "media.jsonl",
    "evaluations.jsonl",
    "predictions.jsonl", "logs/launcher.log", "code.diff", "environment.txt", "restarts.json",
    ".hydra/config.yaml", ".trackers/tensorboard.json", "checkpoints/latest",
    "checkpoints/step-00000010/manifest.json", "images/10/a.png", "logs", "checkpoints", ".hydra",
)  # fmt: skip
DAMAGES = {
    "a folder": lambda path: (path / "x").mkdir(parents=True),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "NULs": lambda path: path.write_bytes(bytes(5000)),
    "nested": lambda path: path.write_bytes(b"[" * 100_000 + b"\n"),
}
TARGET = "launcher.trackers.tensorboard.TensorBoardTracker"
CONFIG = {"tracker": {"tensorboard": {"_target_": TARGET}}}
MORE = {
    "compare": ["bbbb0002"],
    "checkpoints": ["--delete", "--keep", "latest"],
    "watch": ["--once"],
    "rollback": ["5"],
}


def write(folder) -> None:
    """The files of a run that has logged, and saved a checkpoint."""
    row = {"step": 10, "time": 1.8e9, "attempt": 1, "samples": 8}
    row |= {"train/loss": 1.0, "val/loss": 1.0}
    folder.metrics_path.write_text(json.dumps(row) + "\n")
    image = {"step": 10, "time": 1.8e9, "kind": "image", "key": "a", "path": "images/10/a.png"}
    (folder.path / "media.jsonl").write_text(json.dumps(image) + "\n")
    for name in ("images/10", "checkpoints/step-00000010", ".trackers"):
        (folder.path / name).mkdir(parents=True)
    (folder.path / "images/10/a.png").write_bytes(png(3, 2))
    (folder.checkpoints / "step-00000010/manifest.json").write_text('{"step": 10, "files": {}}')
    (folder.checkpoints / "latest").symlink_to("step-00000010")


OPENED: set[str] | None = None
"""The paths that are opened or listed, while they are noted."""


def note_opened(event: str, values) -> None:
    if OPENED is not None and event in ("open", "os.scandir", "os.listdir"):
        OPENED.add(str(values[0]))


sys.addaudithook(note_opened)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A copy of the first run, and the files that each verb opens of it."""
    return tmp_path_factory.mktemp("kept") / "run", {}


@pytest.fixture
def run_verb(make_run, runs, tmp_path, monkeypatch, kept):
    """Return a function that runs a verb after some files of the first run were damaged."""
    monkeypatch.chdir(tmp_path)
    folder, other = (make_run("gpt", id, config=CONFIG) for id in ("aaaa0001", "bbbb0002"))
    copy, opened = kept

    def run(verb: str, names=(), damage=None) -> set[str]:
        global OPENED
        shutil.rmtree(folder.path)
        shutil.copytree(copy, folder.path, symlinks=True)
        for path in (folder.path / name for name in names):
            is_folder = path.is_dir() and not path.is_symlink()
            shutil.rmtree(path) if is_folder else path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            damage(path)
        OPENED = noted = set()
        words = [] if verb in ("list", "report", "watch") else ["aaaa0001"]
        try:
            code = runs(verb, *words, *MORE.get(verb, []))[0]
        except Exception as error:
            raise AssertionError(f"{verb} of a run with a damaged {names}") from error
        OPENED = None
        assert code in (0, 1, 2), (names, verb)
        assert names or verb != "sync" or code == 0
        return noted

    write(folder)
    write(other)
    if not opened:
        shutil.copytree(folder.path, copy, symlinks=True)
        for verb in VERBS.keys() - STARTS:
            noted = run(verb)
            opened[verb] = [name for name in FILES if any(path.endswith(name) for path in noted)]
    return run


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_verb_ends_with_a_traceback(run_verb, kept, damage):
    """Files that a verb opens are damaged one by one, the others all at once."""
    for verb, opened in kept[1].items():
        run_verb(verb, [name for name in FILES if name not in opened], DAMAGES[damage])
        for name in opened:
            run_verb(verb, [name], DAMAGES[damage])
