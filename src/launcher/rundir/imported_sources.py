"""The user's own source files that a process has imported, and their changes since.

A file is known by the path that its module's name gives it (`my_project/model.py`), so a project
that was moved, and a copy of its code, have the same names. Files of Launcher, of Python and of
installed packages are left out, since their versions are compared instead.
"""

import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePath

from launcher.process.plural import shorten

PACKAGE_FOLDERS = ("site-packages", "dist-packages")
MAX_SHOWN_NAMES = 8

_imported: dict[str, tuple[object, str]] = {}
"""The digest of each file when its module was first seen, and the module's spec at that time."""
_foreign: dict[str, object] = {}
"""The modules of libraries that were seen, by name: each save asks about thousands of modules."""


def digest_imported_sources() -> dict[str, str]:
    """Return the digests, by name, of the user's own files that this process has imported.

    A file that was edited after its import keeps the digest of the running code.
    """
    sources = {}
    for key, (path, module) in _imported_modules():
        spec = getattr(module, "__spec__", None)
        entry = _imported.get(path)
        # Reloading a module gives it another spec.
        if entry is None or entry[0] is not spec:
            digest = digest_of(path)
            if digest is None:
                continue
            entry = (spec, digest)
            _imported[path] = entry
        sources[key] = entry[1]
    return dict(sorted(sources.items()))


def imported_files() -> dict[str, str]:
    """Return the paths, by name, of the user's own files that this process has imported."""
    return {key: path for key, (path, _) in _imported_modules()}


def _imported_modules() -> Iterator[tuple[str, tuple[str, object]]]:
    for name, module in list(sys.modules.items()):
        if _foreign.get(name) is module:
            continue
        path = getattr(module, "__file__", None)
        if not isinstance(path, str):
            continue
        if _is_foreign(name, path):
            _foreign[name] = module
            continue
        key = _key(name, path)
        if key is not None:
            yield key, (path, module)


def source_changes(stored: Mapping[str, object], current: Mapping[str, str]) -> list[str]:
    """Return a message for each file that was edited, is gone, or is new.

    Stored files that this process has not imported are looked up only: it may import them late.
    """
    digests = {name: current[name] if name in current else _look_up(name) for name in stored}
    kinds = {
        "was edited": [name for name in stored if digests[name] not in (None, stored[name])],
        "is gone": [name for name in stored if digests[name] is None],
        "is new": [name for name in current if name not in stored] if stored else [],
    }
    return [
        f"{shorten(names, MAX_SHOWN_NAMES)}: {change}." for change, names in kinds.items() if names
    ]


def digest_of(path: str | os.PathLike[str]) -> str | None:
    """Return the digest of a file's content, or None if it cannot be read or is not a file."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except (OSError, ValueError):
        return None


def _is_foreign(name: str, path: str) -> bool:
    """Return whether a module's file is no source, or belongs to a library."""
    if not path.endswith(".py") or is_installed(os.path.dirname(path)):
        return True
    top = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
    # A library wrote such a file for itself, as torch.compile does.
    return isinstance(top, str) and is_installed(os.path.dirname(top)) and name != "__main__"


def _key(name: str, path: str) -> str | None:
    """Return a file's name, if it is below the current folder or where the module's name says."""
    end = "/__init__.py" if os.path.basename(path) == "__init__.py" else ".py"
    key = PurePath(name.replace(".", "/") + end)
    if PurePath(path).parts[-len(key.parts) :] == key.parts:
        return key.as_posix()
    relative = os.path.relpath(path)
    if relative.startswith(os.pardir):
        return os.path.basename(path) if name == "__main__" else None
    return PurePath(relative).as_posix()


def is_library(file: str) -> bool:
    """Return whether the code of a frame is not the user's."""
    return file.startswith("<frozen") or is_installed(os.path.dirname(file))


@cache
def is_installed(folder: str) -> bool:
    """Return whether a folder belongs to an installed package, to Python, or to Launcher."""
    path = Path(folder)
    return any(part in PACKAGE_FOLDERS for part in path.parts) or any(
        path.is_relative_to(library) for library in _libraries()
    )


@cache
def _libraries() -> list[Path]:
    """Return the folders of Python and of Launcher."""
    package = Path(__file__).parents[1]
    python = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    return [*python, package, package.parent / "hydra_plugins"]


def _look_up(name: str) -> str | None:
    """Digest the file that importing its module would read now. Nothing is imported."""
    first, *rest = PurePath(name).parts
    for candidate in _candidates(first.removesuffix(".py")):
        path = candidate if not rest else os.path.join(candidate, *rest)
        digest = digest_of(path)
        if digest is not None:
            return digest
    return digest_of(name)


def _candidates(top: str) -> Iterator[str]:
    """Yield the file of a module at the top level, or the folders of a package."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return
    if spec is not None:
        yield from spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
