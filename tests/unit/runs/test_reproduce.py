"""`runs reproduce`: what it installs, and what it rejects; tests/end_to_end/test_reproduce.py
trains."""

import subprocess
from pathlib import Path

import pytest

from launcher.rundir.reproduction import CODE, ENVIRONMENT
from launcher.runs.reproduce import Packages, install_commands, package_changes, packages

TEXT = """# CPython 3.11.7, Linux
numpy==2.1.0
torch==2.13.0+cu128
torch-launcher==0.1.0  # not from an index
--index-url=http://evil
-e .
evil @ http://evil
name==1; touch x
"""


def test_only_names_with_versions_are_installed() -> None:
    assert packages(TEXT) == Packages(
        "3.11.7", ["numpy==2.1.0", "torch==2.13.0+cu128"], ["cu128"], ["torch-launcher==0.1.0"]
    )
    assert packages("") == Packages(None, [], [], [])


@pytest.mark.parametrize("uv", [None, "/bin/uv"])
def test_an_environment_is_made_of_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uv: str | None
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: uv)
    python = tmp_path / ".venv/bin/python"
    make, install, own = install_commands(packages(TEXT), tmp_path, python, with_own=True)
    assert (make[:2] == ["/bin/uv", "venv"]) == (uv is not None) and make[-1] == str(
        tmp_path / ".venv"
    )
    assert ("3.11.7" in make) == (uv is not None)
    for command in (install, own):
        assert command[0] == (uv or str(python)) and "--no-deps" in command
    assert "--only-binary" in install and "https://download.pytorch.org/whl/cu128" in install
    python.parent.mkdir(parents=True)
    python.touch()
    assert len(install_commands(packages("a==1"), tmp_path, python, with_own=False)) == 1


def test_changed_packages_are_named(tmp_path: Path) -> None:
    for name, text in (
        ("a", "numpy==1\ntorch==2\nold==1\n"),
        ("b", "numpy==1\ntorch==3\nnew==4\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / ENVIRONMENT).write_text(text)
    assert package_changes(tmp_path / "a", tmp_path / "b") == [
        "new: 4 instead of none",
        "old: none instead of 1",
        "torch: 3 instead of 2",
    ]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (root := tmp_path / "project").mkdir()
    (root / "a.py").write_text("a = 1\n")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.email=a@b", "-c", "user.name=a", "commit", "-qm", "1"],
    ):
        subprocess.run(["git", *words], cwd=root, check=True)
    monkeypatch.chdir(root)
    return root


def head(root: Path) -> str:
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    ).stdout


def test_reproduce_rejects_what_it_cannot_restore(
    make_run, runs, project: Path, tmp_path: Path
) -> None:
    folder = make_run("mlp", "abcd1234", overrides=["model=mlp"])
    cases = {
        "": "was not started in a git repository with a commit, so its code is not known.",
        f"# commit: {'0' * 40}\n": (
            "its commit 000000000000 is not in a git repository of the current folder; go to"
        ),
        "# commit: --help\n": "was not started in a git repository",
        f"# commit: {head(project)}diff --git a/x b/x\ngarbage\n": (
            "git cannot restore the code of mlp/abcd1234 ("
        ),
    }
    for text, message in cases.items():
        (folder.path / CODE).write_text(text)
        code, output, errors = runs("reproduce", "abcd1234", "--here", "--into", tmp_path / "new")
        assert (code, output) == (2, "") and message in errors, errors
        assert not (tmp_path / "new").exists()
    code, _, errors = runs("reproduce", "abcd1234", "--run")
    assert code == 2 and "has no checkpoint in" in errors
    (folder.path / CODE).write_text(f"# commit: {head(project)}")
    code, _, errors = runs("reproduce", "abcd1234", "--into", project)
    assert code == 2 and f"--into={project}: exists, and has not the code" in errors
    code, _, errors = runs("reproduce", "abcd1234", "--into", tmp_path / "new")
    assert (
        code == 2 and "has no environment.txt, so its packages are not known; use --here." in errors
    )
    (tmp_path / "new" / "b.py").write_text("b = 1\n")
    code, _, errors = runs("reproduce", "abcd1234", "--into", tmp_path / "new")
    assert (
        code == 2
        and "exists, and has not the code of mlp/abcd1234; choose another folder." in errors
    )
