"""`python -m launcher init my_project`: a project with a model, data, an experiment and tests."""

import keyword
import sys
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from string import Template

from launcher.cli.schema import write_schemas
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser, path_argument

SUFFIX = ".in"
"""The suffix of the files in `cli/project/`: no tool takes them for code."""
HIDDEN = ("github", "gitignore")
"""Names that begin with a dot in a project, where tools of this repository would read them."""


def main(argv: Sequence[str]) -> None:
    """Make a project."""
    parser = Parser(
        "python -m launcher init", description="Make a project of your own that trains at once."
    )
    parser.argument(
        "folder", "FOLDER", "a new or empty folder, e.g. my_project", type=path_argument
    )
    folder: Path = parser.parse_args(argv).folder
    package = make_project(folder)
    write_schemas(folder)
    print(f"{folder}: the package {package}, conf/ and tests/. Next:\n")
    print(f"  cd {folder}\n  python -m launcher experiment=first\n  python -m launcher.runs")


def make_project(folder: Path) -> str:
    """Write the project's files; return the name of its package."""
    name = folder.absolute().name
    package = name.replace("-", "_").lower()
    if not package.isidentifier() or keyword.iskeyword(package):
        raise ConfigError(
            f"init {folder}: a package cannot be called {package}; e.g. init my_project."
        )
    if package in sys.stdlib_module_names or (find_spec(package) and not folder.is_dir()):
        raise ConfigError(
            f"init {folder}: there is an installed package {package}; choose another name."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"init {folder}: it exists and is not an empty folder; choose another name."
        )
    try:
        for path, template in _templates(resources.files("launcher.cli") / "project"):
            file = folder / path.replace("package/", f"{package}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(
                Template(template.read_text(encoding="utf-8")).substitute(
                    name=name, package=package
                )
            )
    except OSError as error:
        raise ConfigError(
            f"init {folder}: cannot be written: {error.strerror or error}."
        ) from error
    return package


def _templates(folder: Traversable, path: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield the path of each file in the project, and its template."""
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.is_dir():
            yield from _templates(entry, f"{path}{_hidden(entry.name)}/")
        elif entry.name.endswith(SUFFIX):
            yield path + _hidden(entry.name.removesuffix(SUFFIX)), entry


def _hidden(name: str) -> str:
    return f".{name}" if name in HIDDEN else name
