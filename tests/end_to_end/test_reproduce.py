"""`runs reproduce`: the printed commands restore the code of a run, and a training there is bitwise
identical."""

import os
import subprocess
from pathlib import Path
from shlex import split

from launcher.proof.diff import diff
from launcher.rundir.folder import RunFolder
from support.git import commit
from support.runner import run_folder, start

HOOK = """from launcher import BaseHook


class Scale(BaseHook):
    def on_before_optimizer_step(self, trainer):
        for weight in trainer.model.parameters():
            weight.grad.mul_(0.5)
"""
RUN = split(
    "model=mlp data=digits device=cpu trainer.max_steps=4 hooks.checkpointing.interval=2"
    " +hooks.scale._target_=mine.Scale"
)


def run(cwd: Path, *words: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = start("-m", *words, cwd=cwd, env=env)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def test_the_code_of_a_run_with_uncommitted_changes_is_restored(tmp_path):
    (tmp_path / ".gitignore").write_text("outputs/\n")
    (tmp_path / "mine.py").write_text(HOOK)
    commit(tmp_path)
    (tmp_path / "mine.py").write_text(HOOK.replace("0.5", "0.25"))
    run(tmp_path, "launcher", *RUN)
    (tmp_path / "mine.py").write_text(HOOK)
    output = run(tmp_path, "launcher.runs", "reproduce", "mlp-digits", "--into", "other place")
    lines = output.splitlines()
    packages = next(line for line in lines if line.startswith("uv venv "))
    assert len([line for line in lines if line.startswith("git ")]) == 2
    script = "\n".join(line for line in lines if line != packages)
    subprocess.run(["sh", "-e", "-c", script], cwd=tmp_path, check=True)
    other = tmp_path / "other place"
    assert (other / "mine.py").read_text() == HOOK.replace("0.5", "0.25")
    assert (tmp_path / "mine.py").read_text() == HOOK
    pins = packages.partition("&& ")[2].partition(" |")[0]
    found = subprocess.check_output(["sh", "-c", pins], text=True).splitlines()
    assert all("==" in line and " " not in line for line in found) and len(found) > 9
    run(other, "launcher", *RUN)
    first, second = (RunFolder(run_folder(place / "outputs")) for place in (tmp_path, other))
    found = diff(first, second, 0, 4, ("the run", "the reproduction"))
    assert found.is_equal and found.tensors == 24, found.texts()
