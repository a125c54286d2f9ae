"""The built and installed package: the wheel is complete, and the tested versions are the required
ones."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import launcher
from support.fork_server import PRELOADED
from support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built as pip builds it, but with the build tool that is here: no network is needed."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("torch_launcher-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the wheel installed, and nothing of this checkout."""
    folder = tmp_path_factory.mktemp("installed")
    options = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--target", str(folder)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(wheel)],
        check=True,
        capture_output=True,
    )
    return folder


def run(installed, cwd, *command):
    """Run a command with the installed wheel before everything else."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, check=True, capture_output=True, text=True
    )


def test_the_wheel_has_the_code_the_configuration_and_the_plugins(wheel):
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    expected = {
        f"{place}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for folder, place in (
            (ROOT / "conf", "launcher/conf"),
            (ROOT / "src" / "launcher", "launcher"),
            (ROOT / "src" / "hydra_plugins", "hydra_plugins"),
        )
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "launcher/conf/config.yaml" in expected and "launcher/conf/__init__.py" in expected
    assert {name: data for name, data in content.items() if ".dist-info/" not in name} == expected
    # It is a namespace, shared with other packages.
    assert "hydra_plugins/__init__.py" not in content
    licence = next(data for name, data in content.items() if name.endswith("/licenses/LICENSE"))
    assert licence == (ROOT / "LICENSE").read_bytes()


def test_a_package_index_gets_a_readme_without_broken_links(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(
            archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")
        )
    assert "Content-Type: text/markdown" in metadata and "\n# Launcher\n" in metadata
    targets = re.findall(r"\]\(([^)]+)\)", metadata)
    assert targets and all(target.startswith("https://") for target in targets)
    assert "naming (`docs/naming.md`)" in metadata
    assert "hero.svg" not in metadata and "badge" not in metadata


def test_the_installed_wheel_composes_its_own_configuration_anywhere(installed, tmp_path):
    where = run(
        installed, tmp_path, sys.executable, "-c", "import launcher; print(launcher.__file__)"
    ).stdout
    assert Path(where.strip()).is_relative_to(installed)
    words = ["optimizer.lr=0.25", "--cfg", "job", "--resolve"]
    by_module = run(installed, tmp_path, sys.executable, "-m", "launcher", *words).stdout
    by_script = run(installed, tmp_path, installed / "bin" / "launcher", *words).stdout
    assert "lr: 0.25" in by_module and by_module == by_script
    assert (
        "There are no runs in outputs"
        in run(installed, tmp_path, installed / "bin" / "launcher-runs").stderr
    )
    assert list(tmp_path.iterdir()) == []


def pins():
    """constraints.txt as {name: version}."""
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    return {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in lines)
    }


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_each_dependency_has_a_tested_version(extra):
    for text in PROJECT["dependencies"] if extra is None else EXTRAS[extra]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            assert requirement.extras <= set(EXTRAS)
        else:
            assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)]), text


def imported(folder: str) -> dict[str, str]:
    """Packages that the files of a folder import, each with one of these files."""
    found = {}
    files = (ROOT / folder).rglob("*.py")
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    modules = [each.name for each in names]
                case ast.ImportFrom(module=str(module), level=0):
                    modules = [module]
                case _:
                    continue
            for module in modules:
                found[module.partition(".")[0]] = path.relative_to(ROOT).as_posix()
    return found


def ours() -> set[str]:
    """Packages of this project. Examples and tests import files beside them, too."""
    beside = [path for folder in ("docs", "tests") for path in (ROOT / folder).rglob("*.py")]
    folders = [path for folder in (ROOT, ROOT / "src", ROOT / "tests") for path in folder.iterdir()]
    return {path.stem for path in [*beside, *folders]}


@pytest.mark.parametrize("folder", ["src", "conf", "docs", "tests"])
def test_each_imported_package_is_a_dependency(folder):
    names = imported(folder)
    if folder == "tests":
        names |= {name.partition(".")[0]: "PRELOADED" for name in PRELOADED}
    extras = [name for name in EXTRAS if folder in ("docs", "tests") or name != "dev"]
    required = {
        canonicalize_name(Requirement(text).name)
        for text in [*PROJECT["dependencies"], *chain.from_iterable(map(EXTRAS.get, extras))]
    }
    of_module = packages_distributions()
    undeclared = {
        name: path
        for name, path in names.items()
        if name not in sys.stdlib_module_names | ours()
        and not required & set(map(canonicalize_name, of_module.get(name, [name])))
    }
    assert undeclared == {}


def test_tested_versions_are_the_same_everywhere():
    for name, version in pins().items():
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), (
            f"{name}: a label of one build, or no exact version"
        )


def test_pre_commit_has_the_tested_versions():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    pinned = dict(re.findall(r"([\w-]+)==([\w.]+)", text))
    assert {"ruff", "mypy", "torch"} <= pinned.keys()
    assert {name: pins()[canonicalize_name(name)] for name in pinned} == pinned


def test_the_citation_has_the_version_of_the_package():
    assert f"\nversion: {launcher.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_all_means_every_extra_of_users():
    assert Requirement(EXTRAS["all"][0]).extras == set(EXTRAS) - {"all", "dev", "docs"}


@pytest.mark.parametrize("target", ["train", "check", "test"])
def test_one_command_makes_the_environment_and_does_its_work(target, tmp_path):
    variables = [f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "-n", target, *variables]
    done = subprocess.run(
        command, cwd=ROOT, env=outside, check=True, capture_output=True, text=True
    )
    made, installed, *work = [
        line for line in done.stdout.splitlines() if str(tmp_path) in line and "touch" not in line
    ]
    assert made == f"{sys.executable} -m venv {tmp_path / 'venv'}"
    found = re.search(r"pip install -c constraints\.txt -e '\.\[([a-z0-9,]+)\]'$", installed)
    assert found and set(found.group(1).split(",")) <= set(EXTRAS)
    assert ("-m launcher" if target == "train" else "-m pytest") in work[-1]
