"""Two users with a folder of their group: real user ids, so root runs these tests."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

GROUP = 54320
ALICE, BOB = 54321, 54322
RUN = (
    *("-m", "launcher", "model=mlp", "data=synthetic", "strategy=none", "device=cpu"),
    *("model.hidden_dim=2", "model.num_layers=1", "data.batch_size=4", "trainer.max_steps=2"),
)


@pytest.fixture
def group(tmp_path):
    """Runs Python as a user of the group, in its folder; gives the exit code and the output."""
    folder = tmp_path / "group"
    if os.geteuid() != 0:
        pytest.skip("only root has other users")

    def run(user: int, *words: str, umask: int = 0o002, key: Path | None = None) -> tuple[int, str]:
        variables = {
            "HOME": str(tmp_path / str(user)),
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", *filter(None, sys.path)))),
        }
        if key is not None:
            variables["LAUNCHER_KEY"] = str(key)
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=variables,
            user=user,
            group=GROUP,
            extra_groups=[],
            umask=umask,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    folder.mkdir()
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o011)
    for user in (ALICE, BOB):
        (tmp_path / str(user)).mkdir()
        os.chown(tmp_path / str(user), user, GROUP)
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    try:
        code, _ = run(BOB, "-c", "import torch, launcher")
    except PermissionError:
        code = 1
    if code != 0:
        pytest.skip("another user cannot run this Python")
    return run


def test_two_users_of_a_group_work_on_the_same_run(group, tmp_path):
    assert group(ALICE, *RUN, umask=0o022)[0] == 0
    outputs = tmp_path / "group" / "outputs"
    code, output = group(BOB, *RUN, "seed=1")
    assert code == 2 and f"belongs to {ALICE}, and is not writable" in output
    assert f"ask {ALICE} for `chmod -R g+rwX {outputs}`, and `umask 002`" in output
    for path in (outputs, *outputs.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o020)
    assert group(BOB, *RUN, "trainer.max_steps=4", "run.id=x")[0] == 0
    (record,) = outputs.glob("*/x/run.json")
    assert [one["user"] for one in json.loads(record.read_text())["attempts"]] == [str(BOB)]
    assert group(ALICE, *RUN, "trainer.max_steps=6", "run.id=x")[0] == 0
    users = [one["user"] for one in json.loads(record.read_text())["attempts"]]
    assert users == [str(BOB), str(ALICE)]
    listed = group(BOB, "-m", "launcher.runs", "list", "--columns=step")[1]
    assert " user " in listed and f"{BOB} {ALICE}" in listed


def test_a_key_of_the_group_signs_for_each_of_its_users(group, tmp_path):
    folder, key = tmp_path / "group", tmp_path / "group" / "key"
    (folder / "mine.py").write_text("from launcher.models.mlp import MLP\nclass Net(MLP): ...\n")
    command = (*RUN, "model._target_=mine.Net", "run.id=x")
    evaluate = ("-m", "launcher.runs", "evaluate", "x")
    assert group(ALICE, *command, key=key)[0] == 0
    code, output = group(BOB, *evaluate, key=key)
    assert code == 2 and f"if you trust its author {ALICE}" in output
    key.chmod(0o640)
    assert group(BOB, *evaluate, key=key)[0] == 0
    shutil.rmtree(tmp_path / str(BOB))
