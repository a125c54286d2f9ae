"""`runs reproduce`: the printed commands restore the code of a run, and a training there is bitwise
identical."""

import json
import os
import subprocess
from pathlib import Path
from shlex import split

from launcher.proof.diff import diff
from launcher.rundir.folder import RunFolder
from support.git import commit, git
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


SCALE = "def scale():\n    return 0.5\n"
BEHIND = HOOK.replace("from launcher import BaseHook", "from launcher import BaseHook\n{imports}")


def submodule(project: Path, source: Path) -> None:
    """Add a submodule `sub` to a project."""
    (source).mkdir()
    (source / "lib.py").write_text(SCALE)
    commit(source)
    (project / "README").write_text("a project\n")
    commit(project)
    git(project, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(source), "sub")
    git(project, "commit", "-qm", "with a submodule")


def project_of_three(tmp_path: Path) -> tuple[Path, Path]:
    """Make a project with a submodule, and a library in a repository of its own; both train."""
    project, library = tmp_path / "project", tmp_path / "library"
    project.mkdir()
    submodule(project, tmp_path / "source")
    (library / "src").mkdir(parents=True)
    (library / "src" / "lab.py").write_text(SCALE)
    commit(library)
    (project / ".gitignore").write_text("outputs/\nignored.py\n")
    (project / "ignored.py").write_text("one = 1\n")
    imports = "from sub.lib import scale\nimport lab\n"
    text = BEHIND.format(imports=imports).replace("0.5", "scale() * lab.scale()")
    (project / "mine.py").write_text(text)
    commit(project)
    return project, library


def train(project: Path, library: Path, *words: str) -> str:
    path = os.pathsep.join([str(library / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    process = start("-m", *words, cwd=project, env=env)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def test_code_of_a_submodule_and_of_another_repository_is_restored(tmp_path):
    project, library = project_of_three(tmp_path)
    edited = SCALE.replace("0.5", "0.25")
    (project / "sub" / "lib.py").write_text(edited)
    (library / "src" / "lab.py").write_text(edited)
    (library / "src" / "new.py").write_text("one = 1\n")
    train(project, library, "launcher", *RUN)
    folder = RunFolder(run_folder(project / "outputs"))
    state = json.loads(folder.record_path.read_bytes())["git"]
    assert state["dirty"] and state["repositories"].keys() == {str(library)}
    assert state["repositories"][str(library)]["dirty"]
    (project / "sub" / "lib.py").write_text(SCALE)
    (library / "src" / "lab.py").write_text(SCALE)
    (library / "src" / "new.py").unlink()
    words = ("launcher.runs", "reproduce", "mlp-digits", "--into", "../again")
    output = train(project, library, *words)
    script = "\n".join(line for line in output.splitlines() if not line.startswith("uv "))
    script += '\necho "path $PYTHONPATH"\n'
    done = subprocess.run(
        ["sh", "-e", "-c", script], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + script
    again, lab = tmp_path / "again", tmp_path / "again-library"
    assert (again / "sub" / "lib.py").read_text() == edited
    assert (lab / "src" / "lab.py").read_text() == edited and (lab / "src" / "new.py").exists()
    assert f"{lab}/src" in done.stdout.rpartition("path ")[2]
    train(again, lab, "launcher", *RUN)
    second = RunFolder(run_folder(again / "outputs"))
    found = diff(folder, second, 0, 4, ("the run", "the reproduction"))
    assert found.is_equal, found.texts()


def test_a_file_that_no_repository_has_is_named(tmp_path):
    project, library = project_of_three(tmp_path)
    text = (project / "mine.py").read_text()
    (project / "mine.py").write_text(f"import alone\nimport ignored\n{text}")
    (library / ".git").rename(tmp_path / "no repository")
    (library / "src" / "alone.py").write_text("one = 1\n")
    train(project, library, "launcher", *RUN)
    words = ("-m", "launcher.runs", "reproduce", "mlp-digits", "--into", "../again")
    process = start(*words, cwd=project)
    output, _ = process.communicate()
    missing = [line.split()[2] for line in output.splitlines() if "is in no stored" in line]
    assert process.returncode == 1
    assert {"alone.py,", "ignored.py,", "lab.py,"} <= {*missing} and "mine.py," not in missing
