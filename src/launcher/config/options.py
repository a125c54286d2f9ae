"""Configuration folders, their groups and options, without Hydra."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from launcher.config import plain_yaml
from launcher.config.tree import Node, as_list, get

ENTRY_POINTS = "launcher.conf"
PROJECT_FILE = "config.yaml"
"""The file with a project's own defaults, and the name of Launcher's."""
IGNORED = "# launcher: ignore"
"""The first line of a `config.yaml` that is another program's."""
COLLECTIONS = ("hooks", "tracker")
"""Groups with any number of named parts."""


def config_path() -> str:
    """The repository's `conf/` in a checkout, else the wheel's copy, in Hydra's notation."""
    source, root = Path(__file__).resolve().parents[2:4]
    is_checkout = source.name == "src" and (root / "conf" / "config.yaml").is_file()
    return str(root / "conf") if is_checkout else "pkg://launcher.conf"


def main_folder() -> Traversable:
    """The folder of `config_path`."""
    path = config_path()
    if path.startswith("pkg://"):
        return resources.files(path.removeprefix("pkg://"))
    return Path(path)


@cache
def own_option(group: str, name: str) -> Node:
    """Return the content of a YAML file of Launcher's own."""
    node: Node = plain_yaml.load((main_folder() / group / f"{name}.yaml").read_bytes())
    return node


def own_target(group: str, name: str) -> str:
    """Return the class of an option of Launcher's own."""
    return str(own_option(group, name)["_target_"])


def own_folder(place: Path = Path()) -> Path | None:
    """Return `conf/` in a folder if it has options of our groups or a project's defaults.

    A checkout of Launcher has none of its own.
    """
    folder = place / "conf"
    if not folder.is_dir() or _is_launchers(folder):
        return None
    groups, own = (
        {entry.name for entry in each.iterdir() if entry.is_dir()}
        for each in (main_folder(), folder)
    )
    if groups & own or project_file(folder) is not None:
        return folder
    return None


def project_file(folder: Path) -> Path | None:
    """Return the file with a project's own defaults in a folder of options, or None.

    It is None also if the file begins with `IGNORED`, or is Launcher's own.
    """
    file = folder / PROJECT_FILE
    if not file.is_file() or _is_launchers(folder):
        return None
    with file.open("rb") as opened:
        is_ignored = opened.readline().strip() == IGNORED.encode()
    return None if is_ignored else file


def _is_launchers(folder: Path) -> bool:
    """Return whether a folder is `conf/` of a checkout of Launcher, or of the installed package."""
    root = folder.resolve().parent
    is_checkout = (root / "src" / "launcher" / "__init__.py").is_file()
    return is_checkout or str(folder.resolve()) == str(main_folder())


def find_installed() -> dict[str, Path | None]:
    """Return the folders of the entry points `launcher.conf`, by package; nothing is imported.

    The folder is None if the package does not exist.
    """
    from importlib.metadata import entry_points

    from launcher.config.schema.source import find_module

    packages = {entry.value: find_module(entry.value) for entry in entry_points(group=ENTRY_POINTS)}
    return {
        name: Path(package.folders[0]) if package and package.folders else None
        for name, package in sorted(packages.items())
    }


def installed_folders() -> list[Path]:
    """Return the folders of `find_installed` that exist."""
    return [folder for folder in find_installed().values() if folder is not None]


def composition_folders(runtime: object) -> list[Traversable]:
    """Return the folders that Hydra composed a configuration from, except its own.

    Args:
        runtime: `hydra.runtime` of the configuration, or None: of the current job.
    """
    from hydra.core.hydra_config import HydraConfig

    sources = get(runtime, "config_sources")
    if sources is None and HydraConfig.initialized():
        sources = HydraConfig.get().runtime.config_sources
    folders: list[Traversable] = []
    for source in sources or ():
        if source["schema"] == "file":
            folders.append(Path(source["path"]))
        elif source["schema"] == "pkg" and source["path"].split(".")[0] != "hydra":
            folders.append(resources.files(source["path"]))
    return folders


def file_with(key: str, runtime: object) -> Traversable | None:
    """Return the file that sets a key: the project's, the preset's, or a chosen option's."""
    group, _, inner = key.partition(".")
    choices = get(runtime, "choices", {})
    chosen = choices.get(group)
    names = as_list(chosen)
    places = [(f"experiment/{choices.get('experiment')}.yaml", key), (PROJECT_FILE, key)]
    places += [(f"{group}/{name}.yaml", path) for name in names for path in (inner, key)]
    folders = [each for each in composition_folders(runtime) if each != main_folder()]
    for name, path in places:
        for file in (folder / name for folder in folders):
            if file.is_file() and get(plain_yaml.load(file.read_bytes()), path) is not None:
                return file
    return None


def groups(folders: Sequence[Traversable]) -> dict[str, list[str]]:
    """Each group with its options, except Hydra's own groups."""
    names = {
        entry.name
        for folder in folders
        for entry in folder.iterdir()
        if entry.is_dir() and entry.name != "hydra"
    }
    listed = {name: options(folders, name) for name in sorted(names)}
    return {name: group for name, group in listed.items() if group}


def options(folders: Sequence[Traversable], group: str) -> list[str]:
    """The options of a group."""
    return sorted({file.name.removesuffix(".yaml") for file in _files(folders, group)})


def options_with(folders: Sequence[Traversable], group: str, key: str) -> list[str]:
    """The options of a group whose file has a key at its top level."""
    pattern = re.compile(rf"^{re.escape(key)}\s*:", re.MULTILINE)
    files = (
        file for file in _files(folders, group) if pattern.search(file.read_text(encoding="utf-8"))
    )
    return sorted({file.name.removesuffix(".yaml") for file in files})


def _files(folders: Sequence[Traversable], group: str) -> Iterator[Traversable]:
    for folder in folders:
        if (folder / group).is_dir():
            yield from (file for file in (folder / group).iterdir() if file.name.endswith(".yaml"))
