"""A pipe or a device in one run blocks no command for others, and its own start is a message."""

import os
import shutil
from pathlib import Path
from shlex import split

import pytest

from support import python
from support.runner import launch, run_folder

COMMAND = split(
    "model=mlp data=digits model.hidden_dim=8 trainer.max_steps=2 hooks.evaluation.max_samples=20"
)
FILES = (
    "run.json", "submission.json", "run.lock", "note.json", "metrics.jsonl", "chain.jsonl",
    "media.jsonl",
    "checkpoints/step-00000002/manifest.json", "logs/launcher.log", "restarts.json",
)  # fmt: skip
KINDS = {"pipe": os.mkfifo, "device": lambda path: os.symlink("/dev/zero", path)}
SECONDS = 60


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    launch(folder, *COMMAND, code=0)
    return folder


def run(folder: Path, *words: str) -> int:
    return python.run("-m", *words, cwd=folder, timeout=SECONDS).returncode


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_in_one_run_blocks_nobody(trained, tmp_path, kind):
    """All files of the run at once: readers open them one after the other."""
    shutil.copytree(trained, tmp_path / "outputs", symlinks=True)
    broken, folder = run_folder(tmp_path / "outputs"), tmp_path
    for name in FILES:
        path = broken / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind](path)
    assert run(folder, "launcher.runs", "list") == 0
    assert run(folder, "launcher.runs", "checkpoints") == 0
    assert run(folder, "launcher.runs", "report") == 0
    assert run(folder, "launcher", *COMMAND, "seed=1") == 0, "a start of another run"
    own = python.run("-m", "launcher", *COMMAND, cwd=folder, timeout=SECONDS)
    assert own.returncode == 2 and own.stderr.count("\n") == 1, own.stderr
    assert " is a " in own.stderr
