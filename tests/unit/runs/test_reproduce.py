"""`runs reproduce`: what it installs, and what it rejects; tests/end_to_end/test_reproduce.py
trains."""

import os
import subprocess
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.rundir.reproduction import CODE, ENVIRONMENT
from launcher.runs.find import find_run
from launcher.runs.reproduce import package_changes
from launcher.runs.reproduce_environment import (
    Installer,
    Packages,
    is_named,
    make_environment,
    packages,
)

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
        "3.11.7", ["numpy==2.1.0", "torch==2.13.0+cu128"], ["torch-launcher==0.1.0"]
    )
    assert packages("") == Packages(None, [], [])


def wheel(folder: Path, name: str, version: str) -> None:
    """Write a package with one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    listed = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, text in {**files, f"{info}/RECORD": listed}.items():
            archive.writestr(file, text)


@pytest.mark.parametrize("with_uv", [False, True])
def test_an_environment_is_made_of_wheels_the_current_packages_and_public_versions(
    tmp_path: Path,
    make_run: Any,
    outputs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    with_uv: bool,
) -> None:
    """With the real installers, and a folder as their only index."""
    if not with_uv:
        monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    elif Installer(tmp_path, None).uv is None:
        pytest.skip("uv is not installed")
    for name in ("PIP_NO_INDEX", "UV_OFFLINE", "UV_NO_CACHE"):
        monkeypatch.setenv(name, "1")
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(tmp_path / "index"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "index").as_uri())
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    wheel(tmp_path / "index", "first_one", "1.0")
    wheel(tmp_path / "index", "variant", "2.0")
    here = [f"{name}=={version(name)}" for name in ("xxhash", "omegaconf")]
    pins = ["first_one==1.0", *here, "variant==2.0+cpu"]
    folder = make_run("mlp", "abcd1234")
    (folder.path / ENVIRONMENT).write_text("\n".join([*pins, "own==1  # not from an index"]))
    run, place = find_run("abcd1234", outputs), tmp_path / "place"
    python = make_environment(run, place, False)
    output = capfd.readouterr().out
    assert f"since no index has them: {here[1]}, {here[0]}." in output
    assert "variant==2.0+cpu cannot be installed, so it is variant==2.0, which may" in output
    assert "Not from an index, so not installed: own==1." in output
    code = "import first_one, variant, xxhash; print(first_one.version, variant.version, xxhash)"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("1.0 2.0 ") and str(place) in done.stdout
    (folder.path / ENVIRONMENT).write_text("second==1.0\n")
    with pytest.raises(ConfigError, match=r"second==1\.0 cannot be installed .* use --here"):
        make_environment(run, place, False)


def test_an_error_names_a_package_by_its_version() -> None:
    error = ["Because antlr4-python3-runtime==4.9.3 has no wheels", "and pyyaml==6.0.3 (from: -)"]
    pins = ["antlr4_python3.runtime==4.9.3", "PyYAML==6.0.3", "PyYAML==6.0", "runtime==4.9.3"]
    assert [is_named(pin, error) for pin in pins] == [True, True, False, False]


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
