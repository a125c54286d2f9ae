"""The code of a commit, as a copy that Python and Hydra find in place of the working tree's."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

from launcher.errors import ConfigError
from launcher.process.git import list_files, run_git
from launcher.rundir.imported_sources import PACKAGE_FOLDERS
from launcher.rundir.provenance import SNAPSHOT
from launcher.rundir.repositories import top_of
from launcher.slurm.snapshot import copy_file, list_ignored_modules

GITLINK = "160000"
"""The mode of a submodule in a tree of git."""
MAX_SHOWN = 4


@dataclass(frozen=True)
class Code:
    """The code that one side of a comparison trains with.

    Args:
        root: the top of the repository, or of a copy of a commit.
        here: the working folder, relative to the top.
        label: its name in messages.
        folders: folders from which Python imports, relative to the top.
        copy_of: the repository of a copy, whose modules hide the modules of the working tree.
    """

    root: Path
    here: Path
    label: str
    folders: tuple[Path, ...] = ()
    copy_of: Path | None = None

    def environment(self) -> dict[str, str]:
        """Return the variables with which a process in the working folder imports this code."""
        own = [str(self.root / folder) for folder in self._folders()]
        inherited = filter(None, [os.environ.get("PYTHONPATH")])
        variables = {"PYTHONPATH": os.pathsep.join([*own, *inherited]), "PYTHONSAFEPATH": "1"}
        if self.copy_of is not None:
            variables[SNAPSHOT] = str(self.root.with_suffix(".json"))
        return {**os.environ, **variables}

    def version_of(self, file: Path) -> Path:
        """Return this code's version of a file, or the file itself if it is not of this code."""
        if self.copy_of is None or not file.is_relative_to(self.copy_of):
            return file
        copied = self.root / file.relative_to(self.copy_of)
        return copied if copied.exists() else file

    def list_foreign(self, modules: Mapping[str, str]) -> list[str]:
        """Say which modules a process with this copy has imported from elsewhere.

        Args:
            modules: the file of each module of the process. Its program may be the other side's.
        """
        names = [name for name, file in modules.items() if self._is_foreign(name, Path(file))]
        if not names:
            return []
        more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
        return [
            f"both codes import {', '.join(sorted(names)[:MAX_SHOWN])}{more} from one place"
            f" ({modules[min(names)]}); pip install -e . installs a package as a link"
        ]

    def _is_foreign(self, name: str, file: Path) -> bool:
        path = file.resolve()
        # Torch names modules without files.
        if self.copy_of is None or name == "__main__" or not file.is_absolute():
            return False
        if path.is_relative_to(self.root.resolve()):
            return False
        if path.is_relative_to(self.copy_of.resolve()) and not _is_installed(path):
            return True
        here = [self.root / folder / name.replace(".", "/") for folder in self._folders()]
        return any(each.is_dir() or each.with_suffix(".py").exists() for each in here)

    def _folders(self) -> list[Path]:
        folders = dict.fromkeys([self.here, *self.folders, Path("src"), Path()])
        return [folder for folder in folders if (self.root / folder).is_dir()]


def _is_installed(path: Path) -> bool:
    return any(part in PACKAGE_FOLDERS for part in path.parts)


def working_tree() -> Code:
    """Return the code in the repository of the current folder."""
    top = top_of(Path.cwd())
    if top is None:
        raise ConfigError(
            "guard: the current folder is not in a git repository, so there is no other code to"
            " compare with; use --locked, or run git init and commit."
        )
    root = top.resolve()
    here = Path.cwd().resolve().relative_to(root)
    folders = dict.fromkeys(
        folder.relative_to(root)
        for folder in (path.resolve() for path in _import_folders())
        if folder.is_relative_to(root) and not _is_installed(folder)
    )
    return Code(root, here, "the working tree", tuple(folders))


def _import_folders() -> Iterator[Path]:
    """Yield the folders of Python's path, and of packages that are installed as links."""
    yield from (Path(entry) for entry in sys.path if entry)
    for distribution in metadata.distributions():
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            project = Path(url2pathname(urlparse(origin["url"]).path))
            yield from (project / "src", project)


def copy_commit(code: Code, commit: str, target: Path) -> Code:
    """Write the files of a commit to a folder, with its submodules and the generated modules.

    Modules that git ignores (`_version.py`, compiled ones) are copied from the working tree, since
    a package cannot be imported without them. Nothing in the repository changes.
    """
    _write_tree(code.root, commit, target)
    # A run reads from here which code it has.
    saved = {"commit": commit, "dirty": False, "repository": str(code.root)}
    lists: Mapping[str, object] = {"submodules": {}, "untracked": [], "modules": []}
    target.with_suffix(".json").write_text(json.dumps({**saved, **lists}))
    return Code(target, code.here, commit[:12], code.folders, copy_of=code.root)


def _write_tree(repository: Path, commit: str, target: Path) -> None:
    index = target.with_name(f"{target.name}.index")
    target.mkdir(parents=True, exist_ok=True)
    for arguments in (("read-tree", commit), ("checkout-index", "--all", f"--prefix={target}/")):
        if run_git(repository, *arguments, index=index) is None:
            raise ConfigError(
                f"guard: {commit[:12]} cannot be read from {repository}; fetch its history."
            )
    index.unlink()
    for name in list_ignored_modules(repository):
        if not (target / name).exists():
            copy_file(repository / name, target / name)
    for entry in list_files(repository, "ls-tree", "-r", "-z", commit):
        properties, _, name = entry.partition("\t")
        # A submodule that is not here is in neither code.
        if properties.startswith(GITLINK) and (repository / name / ".git").exists():
            _write_tree(repository / name, properties.split()[2], target / name)
