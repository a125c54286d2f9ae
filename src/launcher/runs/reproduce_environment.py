"""Makes a virtual environment with the packages of a run."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from launcher.errors import ConfigError
from launcher.rundir.reproduction import ENVIRONMENT
from launcher.runs.stored_run import StoredRun

PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.!]+)(?:\+([\w.]+))?(  # not from an index)?")
PYTHON = re.compile(r"# \w+ (\d+\.\d+\.\d+)")
VARIANT = re.compile(r"cpu|cu\d+|rocm[\d.]+")
"""Local versions of PyTorch's own index."""
TORCH_INDEX = "https://download.pytorch.org/whl/"
MAX_TRIES = 12
"""After so many packages that cannot be installed, no other one is tried."""
SHOWN = 8


@dataclass(frozen=True)
class Packages:
    """The packages of an `environment.txt`.

    Args:
        python: version of the interpreter; None: not recorded.
        pins: `name==version` of those that an index has.
        others: those from a folder or a repository.
    """

    python: str | None
    pins: list[str]
    others: list[str]


def packages(text: str) -> Packages:
    """Read an `environment.txt`.

    Lines that are not a name and a version are ignored: they would be options of pip.
    """
    found = [match.groups() for line in text.splitlines() if (match := PIN.fullmatch(line))]
    python = PYTHON.match(text)
    return Packages(
        python=None if python is None else python[1],
        pins=[
            f"{name}=={version}{f'+{local}' if local else ''}"
            for name, version, local, other in found
            if not other
        ],
        others=[f"{name}=={version}" for name, version, _, other in found if other],
    )


def make_environment(run: StoredRun, checkout: Path, trusted: bool) -> str:
    """Make a virtual environment with the run's packages.

    A package comes from the index, as a wheel, which runs no code when installed. If there is no
    wheel, it comes from the current environment if that has the same version. If that has another
    version, it is the public version of the same release.

    Args:
        run: what is reproduced.
        checkout: gets `.venv`.
        trusted: the code in the folder may be installed, if the run had it installed.
    Returns:
        Its interpreter.
    Raises:
        ConfigError: the run has no list of packages, or they cannot be installed.
    """
    try:
        needed = packages((run.folder.path / ENVIRONMENT).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{run.label}: has no {ENVIRONMENT}, so its packages are not known; use --here."
        ) from error
    installer = Installer(checkout / ".venv", needed.python)
    installer.make()
    project_pins = [
        pin for pin in needed.others if name_of(pin) == project_name(checkout) and trusted
    ]
    missing = [*installer.install_all(needed.pins), *(set(needed.others) - set(project_pins))]
    copied = [pin for pin in missing if installer.copy(pin)]
    missing = [pin for pin in missing if pin not in copied]
    if copied:
        print(f"Copied from the current environment, since no index has them: {listed(copied)}.")
    for pin in [pin for pin in missing if "+" in pin]:
        public = pin.partition("+")[0]
        if not installer.install([public], "--only-binary", ":all:"):
            missing.remove(pin)
            print(f"{pin} cannot be installed, so it is {public}, which may compute other bits.")
    if project_pins and installer.install(["-e", str(checkout)], "--no-deps"):
        missing += project_pins
    if lost := [pin for pin in missing if pin in needed.pins]:
        raise ConfigError(
            f"{run.label}: {listed(lost)} cannot be installed (see above); use --here."
        )
    if missing:
        print(f"Not from an index, so not installed: {listed(missing)}.")
    return str(installer.python)


def listed(pins: Sequence[str]) -> str:
    more = f" and {len(pins) - SHOWN} more" if len(pins) > SHOWN else ""
    return ", ".join(sorted(pins)[:SHOWN]) + more


def name_of(pin: str) -> str:
    return pin.partition("==")[0]


class Installer:
    """Installs packages into a virtual environment, with uv if it is there, else with pip.

    Args:
        folder: of the environment.
        version: of Python, which only uv can choose; None: the current one.
    """

    def __init__(self, folder: Path, version: str | None):
        self.folder, self.version = folder, version
        self.python = folder / "bin" / "python"
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self.uv = shutil.which("uv", path=path)

    def make(self) -> None:
        """Make the environment, unless it is there.

        Raises:
            ConfigError: it cannot be made.
        """
        if self.python.exists():
            return
        version = [] if self.version is None else ["--python", self.version]
        make = [sys.executable, "-m", "venv", "--without-pip"]
        if self.uv:
            make = [self.uv, "venv", "--quiet", *version]
        if text := failure([*make, str(self.folder)]):
            raise ConfigError(f"{self.folder}: cannot be made; use --here:", *text)
        current = sys.version.split()[0]
        if not self.uv and self.version not in (None, current):
            print(f"Python is {current}, not {self.version}; with uv installed it would be that.")

    def install_all(self, pins: Sequence[str]) -> list[str]:
        """Install packages from the index, or versions of PyTorch's index from there.

        Returns:
            Those that cannot be installed.
        """
        groups: dict[str, list[str]] = {}
        for pin in pins:
            local = pin.partition("+")[2]
            groups.setdefault(local if VARIANT.fullmatch(local) else "", []).append(pin)
        missing = []
        for variant, group in groups.items():
            index = ["--index-url", f"{TORCH_INDEX}{variant}"] if variant else []
            missing += self.install(group, "--no-deps", "--only-binary", ":all:", *index)
        return missing

    def install(self, pins: Sequence[str], *options: str) -> list[str]:
        """Install packages, those that can be.

        An installer stops at the first that cannot, so it is started again without the package that
        its error names.

        Returns:
            Those that cannot be installed.
        """
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        if self.uv:
            command = [self.uv, "pip", "install", "--quiet", "--python", str(self.python)]
        missing: list[str] = []
        wanted = list(pins)
        for _ in range(MAX_TRIES):
            words = [*wanted[:SHOWN], *(["..."] if len(wanted) > SHOWN else [])]
            print(shlex.join([*command, *options, *words]), file=sys.stderr, flush=True)
            lines = failure([*command, *options, *wanted])
            if not lines:
                return missing
            print(*lines, sep="\n", file=sys.stderr, flush=True)
            named = [pin for pin in wanted if is_named(pin, lines)]
            missing += named
            wanted = [pin for pin in wanted if pin not in named]
            if not wanted or not named:
                break
        return missing + wanted

    def copy(self, pin: str) -> bool:
        """Copy a package from the current environment, if this has the same version.

        The files are linked, where the file system can do that.

        Returns:
            Whether it has.
        """
        library = self.folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        with suppress(PackageNotFoundError):
            found = distribution(name_of(pin))
            if found.version == pin.partition("==")[2] and found.files and library.is_dir():
                link(found, library / "site-packages")
                return True
        return False


def link(found: Distribution, target: Path) -> None:
    """Link the files of an installed package into another folder for packages.

    They are copied if the folder is on another file system. The package's scripts, which name their
    interpreter, are left out.
    """
    for file in found.files or []:
        source, copy = Path(str(found.locate_file(file))), target / file
        if ".." in file.parts or file.suffix == ".pyc" or copy.exists() or not source.is_file():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, copy)
        except OSError:
            shutil.copy2(source, copy)


def is_named(pin: str, lines: Sequence[str]) -> bool:
    """Return whether an installer's error is about a package."""
    name, text = (re.sub(r"[-_.]+", "-", text.lower()) for text in (pin, " ".join(lines)))
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-]*\w)", text) is not None


def failure(command: Sequence[str]) -> list[str]:
    """Run a command; returns the last lines that it printed if it failed, else nothing."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return (lines[-SHOWN:] or ["?"]) if done.returncode else []


def project_name(checkout: Path) -> str | None:
    """Return the name of the distribution that a folder's code makes, or None if it makes none."""
    try:
        name = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["name"]
    except (OSError, ValueError, KeyError):
        return None
    return str(name)
