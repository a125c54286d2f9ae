"""A user's project, and command lines in it."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.config.compose import composer
from support import python
from support.composition import shared_composer

PACKAGE = '''
from launcher.errors import ConfigError
from launcher.process.signals import SignalExit
from launcher.types import PositiveInt


class MyModel:
    def __init__(self, width: PositiveInt, depth: PositiveInt = 2):
        if width == 13:
            raise ConfigError("model.width=13: brings bad luck.")
        raise RuntimeError("built")


class MyJob:
    """Ends in the way of its `outcome`, instead of training."""

    def __init__(self, outcome: str = "completes"):
        self.outcome = outcome

    def run(self, config):
        print(f"running {config.name} seed={config.seed}")
        if self.outcome == "rejects":
            raise ConfigError("data.files='x': is empty.", "model.width=3: is odd.")
        if self.outcome != "cannot build":
            (config.folder.path / "started").touch()
        if self.outcome == "crashes":
            raise ValueError("a bug")
        if self.outcome == "exits":
            raise SystemExit(1)
        if self.outcome == "is stopped":
            raise SignalExit(15)
        if self.outcome == "cannot build":
            from launcher.config.construct import instantiate

            instantiate(config.plain["model"], "model")
'''

FILES = {
    "{package}/__init__.py": PACKAGE,
    "conf/job/mine.yaml": "_target_: {package}.MyJob\noutcome: completes\n",
    "conf/model/mine.yaml": "_target_: {package}.MyModel\nwidth: 64\n",
}


def write_project(folder: Path, package: str = "my_package") -> Path:
    """A user's package, and a folder of configuration for it."""
    for name, text in FILES.items():
        path = folder / name.replace("{package}", package)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{package}", package))
    return folder


def launcher(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`python -m launcher ...` in a folder."""
    return python.run("-m", "launcher", *arguments, cwd=cwd)


def exit_code(*arguments: str) -> int:
    """The exit code of the same command in this process, which is faster."""
    try:
        main.main(list(arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


@contextmanager
def in_project(folder: Path, files: Mapping[str, str]) -> Iterator[Path]:
    """Write a project's files, and make its folder the current one, whose modules are found."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        yield folder


@pytest.fixture
def shared_groups(monkeypatch):
    """Let commands in this process share what Hydra has composed, as jobs of a sweep do. Commands
    of Hydra see a command line, and show their errors."""
    monkeypatch.setattr(sys, "argv", ["launcher"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(composer, "Composer", shared_composer)
