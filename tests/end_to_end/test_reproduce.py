"""`runs reproduce`: the code of a run, restored from its commit and its uncommitted changes, trains
to equal bits."""

import os
import subprocess
import sys
from pathlib import Path

from support.runner import run_folder, start

HOOK = """from launcher import BaseHook


class Scale(BaseHook):
    def on_before_optimizer_step(self, trainer):
        for weight in trainer.model.parameters():
            weight.grad.mul_(0.5)
"""
RUN = (
    "model=mlp",
    "data=digits",
    "device=cpu",
    "trainer.max_steps=4",
    "hooks.checkpointing.interval=2",
    "+hooks.scale._target_=mine.Scale",
)


def run(cwd: Path, *words: str) -> tuple[int, str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = start("-m", *words, cwd=cwd, env=env, real=True)
    output, _ = process.communicate()
    return process.returncode, output


def test_a_run_of_uncommitted_code_is_reproduced_and_a_changed_one_is_not(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("outputs/\n")
    (tmp_path / "mine.py").write_text(HOOK)
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.email=a@b", "-c", "user.name=a", "commit", "-qm", "1"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / "mine.py").write_text(HOOK.replace("0.5", "0.25"))
    code, output = run(tmp_path, "launcher", *RUN)
    assert code == 0, output
    (tmp_path / "mine.py").write_text(HOOK)
    outputs = tmp_path / "outputs"
    code, output = run(tmp_path, "launcher.runs", "reproduce", "mlp-digits", "--here", "--run")
    assert code == 2 and "code.diff: --run would run the changes in it" in output, output
    code, output = run(
        tmp_path, "launcher.runs", "reproduce", "mlp-digits", "--here", "--run", "--trust"
    )
    assert code == 0 and ", steps 0 to 2: equal to the bit (24 tensors" in output, output
    assert f"OMP_NUM_THREADS=1 {sys.executable} -m launcher model=mlp" in output
    assert (tmp_path / "mine.py").read_text() == HOOK
    stored = run_folder(outputs) / "code.diff"
    stored.write_text(stored.read_text().replace("0.25", "0.75"))
    words = ["reproduce", "mlp-digits", "--here", "--run", "--trust", "--into", "other"]
    code, output = run(tmp_path, "launcher.runs", *words)
    assert code == 1 and "different." in output and "now: mine.py: was edited." in output, output
