"""A copy of the code as it was at submission."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.rundir.provenance import own_state
from launcher.rundir.reproduction import keep, parse_code
from launcher.slurm.snapshot import lines, take
from support.git import commit, git


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a committed file, a changed one, a file that git does not track, and a
    link."""
    top = tmp_path / "repository"
    (top / "src" / "package").mkdir(parents=True)
    (top / "src" / "package" / "code.py").write_text("VERSION = 1\n")
    (top / "a name.txt").write_text("text")
    (top / "link").symlink_to("a name.txt")
    commit(top)
    (top / "src" / "package" / "code.py").write_text("VERSION = 2\n")
    (top / "scratch.txt").write_text("not tracked")
    monkeypatch.chdir(top / "src")
    return top


def test_the_working_tree_is_copied(repository, tmp_path, monkeypatch):
    folder = folder_in(tmp_path, "submission")
    assert take(folder) == folder
    assert (folder / "code" / "src" / "package" / "code.py").read_text() == "VERSION = 2\n"
    assert os.readlink(folder / "code" / "link") == "a name.txt"
    assert not (folder / "code" / "scratch.txt").exists()
    saved = json.loads((folder / "snapshot.json").read_text())
    assert saved["dirty"] is True and saved["untracked"] == ["scratch.txt"]
    assert len(saved["commit"]) == 40
    assert "+VERSION = 2" in (folder / "code.diff").read_text()
    script = "\n".join([*lines(folder), 'echo "$PYTHONPATH"'])
    monkeypatch.delenv("PYTHONPATH")
    path = subprocess.check_output(["sh", "-c", script], text=True).strip()
    assert path == f"{folder}/code/src{os.pathsep}{folder}/code"


def test_a_run_of_a_snapshot_records_the_code_of_the_snapshot(repository, tmp_path, monkeypatch):
    """The working tree may have changed since the submission."""
    (source := tmp_path / "source").mkdir()
    (source / "lib.py").write_text("one = 1\n")
    commit(source)
    add = ("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(source), "sub")
    git(repository, *add)
    git(repository, "commit", "-qm", "a submodule", "--", "sub", ".gitmodules")
    (repository / "sub" / "lib.py").write_text("one = 2\n")
    folder = take(folder_in(tmp_path, "submission"))
    head = git(repository, "rev-parse", "HEAD").decode().strip()
    (repository / "src" / "package" / "code.py").write_text("VERSION = 3\n")
    commit(repository)
    monkeypatch.setenv("LAUNCHER_SNAPSHOT", str(folder / "snapshot.json"))
    monkeypatch.syspath_prepend(str(folder / "code" / "src"))
    assert own_state() == {"commit": head, "dirty": True}
    wait = keep(run := folder_in(tmp_path, "run"), tmp_path / "outputs", True, lambda: True)
    assert wait is not None
    wait()
    code = parse_code((run / "code.diff").read_bytes())
    assert code.commit == head and b"+VERSION = 2" in code.diff and b"VERSION = 3" not in code.diff
    assert [*code.submodules] == ["sub"] and b"+++ b/sub/lib.py\n" in code.diff


COPIED = (
    "src/package/new.py",
    "src/package/_version.py",
    "src/package/native.cpython-311-x86_64-linux-gnu.so",
    "src/package/generated/deep/api_pb2.py",
    "src/package/new_part/__init__.py",
    "src/new_package/__init__.py",
    "src/top.so",
    "flat/sub/_version.py",
    "new.py",
)
LEFT = (
    "src/package/weights.pt",
    "src/package/__pycache__/code.cpython-311.pyc",
    "build/lib/package/code.py",
    "outputs/.slurm/20260101-000000-abcdef/code/package/code.py",
    "environment/lib/other.py",
    ".hidden/code.py",
    "notes/table.csv",
)


def test_modules_that_git_does_not_track_are_copied(repository, tmp_path):
    """The copy of a package hides the original: what it imports must be in the copy."""
    ignored = "_version.py\n*_pb2.py\n*.so\n*.pt\nbuild/\n__pycache__/\n"
    for name, text in {".gitignore": ignored, "flat/sub/tracked.py": ""}.items():
        written(repository, name, text)
    commit(repository)
    for name in (*COPIED, *LEFT, "environment/pyvenv.cfg"):
        written(repository, name)
    folder = take(folder_in(tmp_path, "submission"))
    code = folder / "code"
    assert {name for name in COPIED if not (code / name).exists()} == set()
    assert {name for name in LEFT if (code / name).exists()} == set()
    assert set(json.loads((folder / "snapshot.json").read_text())["modules"]) == set(COPIED)


def written(top: Path, name: str, text: str = "") -> None:
    (top / name).parent.mkdir(parents=True, exist_ok=True)
    (top / name).write_text(text)


@pytest.mark.parametrize("is_repository", [False, True])
def test_without_a_commit_it_is_rejected(tmp_path, monkeypatch, is_repository):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    if is_repository:
        git(tmp_path, "init", "-q")
    with pytest.raises(
        ConfigError, match=r"dispatch\.snapshot=true: .*use dispatch\.snapshot=false"
    ):
        take(tmp_path)


def test_submodules_are_copied(repository, tmp_path, monkeypatch):
    """Submodules may be nested, each with its own changes."""
    for name in ("inner", "outer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_text("VERSION = 1\n")
        commit(tmp_path / name)
    submodule = ("-c", "protocol.file.allow=always", "submodule")
    git(tmp_path / "outer", *submodule, "add", "-q", str(tmp_path / "inner"), "deep/inner")
    git(tmp_path / "outer", "commit", "-qm", "a submodule")
    monkeypatch.chdir(tmp_path / "repository")
    git(repository, *submodule, "add", "-q", str(tmp_path / "outer"), "lib/outer")
    git(repository, *submodule, "update", "-q", "--init", "--recursive")
    git(repository, "commit", "-qam", "a submodule")
    clean = take(folder_in(tmp_path, "clean"))
    assert json.loads((clean / "snapshot.json").read_text())["dirty"] is False

    inner = "lib/outer/deep/inner"
    (repository / inner / "code.py").write_text("VERSION = 2\n")
    (repository / inner / "notes.txt").write_text("not tracked")
    folder = take(folder_in(tmp_path, "changed"))
    assert (folder / "code" / "lib" / "outer" / "code.py").read_text() == "VERSION = 1\n"
    assert (folder / "code" / inner / "code.py").read_text() == "VERSION = 2\n"
    saved = json.loads((folder / "snapshot.json").read_text())
    assert saved["dirty"] is True
    assert saved["untracked"] == ["scratch.txt", f"{inner}/notes.txt"]
    assert set(saved["submodules"]) == {"lib/outer", inner}
    # It fits the tree from its top.
    git(clean / "code", "apply", "--include=lib/*", str(folder / "code.diff"))
    assert (clean / "code" / inner / "code.py").read_text() == "VERSION = 2\n"


def folder_in(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def test_a_removed_snapshot_is_rejected(repository, tmp_path):
    with pytest.raises(ConfigError, match="snapshot of its code was removed"):
        lines(tmp_path / "gone")
