"""The built and installed package: the wheel is complete, and does what a newcomer types."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support import python
from support.paths import ROOT

LOG = ROOT / ".ci" / "newcomer.txt"
FILE = re.compile(r"^> (\S+)\n(.*?)(?=^\$ |^> )", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


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
    command = [sys.executable, "-m", "pip", "install", *options, str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
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
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(name).decode()
    assert "Content-Type: text/markdown" in metadata
    assert "\n# Launcher (torch-launcher)\n" in metadata
    targets = re.findall(r"\]\(([^)]+)\)", metadata)
    assert targets and all(target.startswith("https://") for target in targets)
    assert "naming (`docs/naming.md`)" in metadata
    assert "hero.svg" not in metadata and "badge" not in metadata


def test_the_installed_wheel_composes_its_own_configuration_anywhere(installed, tmp_path):
    program = "import launcher; print(launcher.__file__)"
    where = run(installed, tmp_path, sys.executable, "-c", program).stdout
    assert Path(where.strip()).is_relative_to(installed)
    words = ["optimizer.lr=0.25", "--cfg", "job", "--resolve"]
    by_module = run(installed, tmp_path, sys.executable, "-m", "launcher", *words).stdout
    by_script = run(installed, tmp_path, installed / "bin" / "launcher", *words).stdout
    assert "lr: 0.25" in by_module and by_module == by_script
    listing = run(installed, tmp_path, installed / "bin" / "launcher-runs")
    assert "There are no runs in outputs" in listing.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_newcomer_types_the_files_of_readme():
    assert FILE.findall(LOG.read_text()) == BLOCK.findall((ROOT / "README.md").read_text())


@pytest.mark.slow
def test_the_log_is_what_a_newcomer_sees_in_a_clone(tmp_path):
    """Each command of the log prints what it shows, and has its exit code. With the wheel, and a
    new interpreter for each command, `make release-check` does the same."""
    command = python.command(tmp_path)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    environment[python.PYTHON] = str(command)
    done = python.run(str(ROOT / ".ci" / "replay"), str(LOG), env=environment, real=True)
    assert done.returncode == 0, done.stdout + done.stderr
