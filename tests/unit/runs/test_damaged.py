"""Verbs on a run folder with damaged files: no traceback."""

import json
import shutil

import pytest

from launcher.runs.__main__ import VERBS

STARTS = {"resume", "evaluate", "export", "predict", "fork", "retry", "replay", "reproduce"}
"""Verbs that start a run: tests/end_to_end/test_damaged_files.py."""
FILES = (
    "run.json", "run.lock", "note.json", "metrics.jsonl", "media.jsonl", "evaluations.jsonl",
    "predictions.jsonl", "logs/launcher.log", "code.diff", "environment.txt", "restarts.json",
    ".hydra/config.yaml", ".trackers/tensorboard.json", "checkpoints/latest",
    "checkpoints/step-00000010/manifest.json", "images/10/a.png", "logs", "checkpoints", ".hydra",
)  # fmt: skip
DAMAGES = {
    "a folder": lambda path: (path / "x").mkdir(parents=True),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "NULs": lambda path: path.write_bytes(bytes(5000)),
    "nested": lambda path: path.write_bytes(b"[" * 100_000 + b"\n"),
}
SLOW = {
    "plot": ("metrics.jsonl",),
    "report": ("run.json", "media.jsonl", "images/10/a.png"),
    "sync": ("run.json", "metrics.jsonl", ".trackers/tensorboard.json"),
}
"""Slow verbs with the files that they read."""
MORE = {
    "compare": ["bbbb0002"],
    "checkpoints": ["--delete", "--keep", "latest"],
    "watch": ["--once"],
    "rollback": ["5"],
    "sync": ["tracker=tensorboard"],
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
    (folder.checkpoints / "step-00000010/manifest.json").write_text('{"step": 10, "files": {}}')
    (folder.checkpoints / "latest").symlink_to("step-00000010")


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_verb_ends_with_a_traceback(make_run, runs, tmp_path, monkeypatch, damage):
    monkeypatch.chdir(tmp_path)
    folders = [make_run("gpt", id, best=None) for id in ("aaaa0001", "bbbb0002")]
    for folder in folders:
        write(folder)
    kept = tmp_path / "kept"
    shutil.copytree(folders[0].path, kept, symlinks=True)
    for name in FILES:
        for verb in (verb for verb in VERBS if verb not in STARTS):
            if name not in SLOW.get(verb, FILES):
                continue
            shutil.rmtree(folders[0].path)
            shutil.copytree(kept, folders[0].path, symlinks=True)
            path = folders[0].path / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(
                missing_ok=True
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            DAMAGES[damage](path)
            words = [] if verb in ("list", "report", "watch") else ["aaaa0001"]
            try:
                code = runs(verb, *words, *MORE.get(verb, []))[0]
            except Exception as error:
                raise AssertionError(f"{verb} of a run whose {name} is {damage}") from error
            assert code in (0, 1, 2), (name, verb)
