"""The code at submission: the files that git tracks, the commit, and the difference from it."""

import json
import os
import shlex
import shutil
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError
from launcher.process.git import (
    diff_of,
    head_of,
    is_foreign,
    list_files,
    list_submodules,
    list_untracked,
    run_git,
)
from launcher.rundir.provenance import SNAPSHOT
from launcher.rundir.repositories import top_of

MODULES = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)


def take(folder: Path) -> Path:
    """Copy the repository of the current folder, with its submodules, to `folder`; return `folder`.

    The copy has the files that git tracks, and the Python modules that it does not track but that
    may be imported with them (see `_modules`). `snapshot.json` has the commits, the names of the
    untracked files and of the copied modules. `code.diff` has the uncommitted changes.
    """
    root = _repository()
    diff = b""
    untracked = []
    modules = []
    commits = {}
    for subfolder in ["", *list_submodules(root)]:
        top = root / subfolder
        generated = _modules(root / subfolder)
        for name in (*list_files(top, "ls-files", "-z"), *generated):
            copy_file(top / name, folder / "code" / subfolder / name)
        diff += diff_of(top, f"{subfolder}/" if subfolder else "")
        untracked += [str(Path(subfolder, name)) for name in list_untracked(top)]
        modules += [str(Path(subfolder, name)) for name in generated]
        commits[subfolder] = head_of(top) or ""
    (folder / "code.diff").write_bytes(diff)
    moved = run_git(root, "submodule", "status", "--recursive") or b""
    saved: dict[str, Any] = {
        "commit": commits.pop(""),
        "dirty": bool(diff) or any(line.startswith(b"+") for line in moved.splitlines()),
        "repository": str(root),
        "submodules": commits,
        "untracked": untracked,
        "modules": modules,
    }
    (folder / "snapshot.json").write_text(json.dumps(saved, indent=1) + "\n")
    return folder


def _repository() -> Path:
    top = top_of(Path.cwd())
    if top is None or head_of(top) is None:
        raise ConfigError(
            "dispatch.snapshot=true: the working directory is not in a git repository with a"
            " commit; commit the code, or use dispatch.snapshot=false."
        )
    return top


def _modules(top: Path) -> list[str]:
    """List the Python modules that git does not track, of the packages that it does.

    They are new ones, and ignored ones (`_version.py`, `*_pb2.py`, compiled ones) next to or below
    the tracked modules of a package. The copy of a package hides the original, so without them it
    could not be imported. Other ignored folders (build/, outputs/, a virtual environment) are not
    copied.
    """
    modules = [name for name in list_untracked(top) if name.endswith(MODULES)]
    return [*modules, *list_ignored_modules(top)]


def list_ignored_modules(top: Path) -> list[str]:
    """List the modules that git ignores, next to or below the tracked modules of a package."""
    modules: list[str] = []
    folders = {str(Path(name).parent) for name in list_files(top, "ls-files", "-z", "*.py")}
    roots = {str(parent) for name in folders for parent in Path(name).parents}
    packages = folders - {".", "src", os.path.relpath(Path.cwd().resolve(), top.resolve())}
    for name in list_files(top, "ls-files", "-z", "-o", "-i", "--exclude-standard", "--directory"):
        parent = str(Path(name).parent)
        if name.endswith("/") and parent in packages:
            below = sorted((top / name).rglob("*.*"))
            modules += [str(path.relative_to(top)) for path in below if path.name.endswith(MODULES)]
        elif name.endswith(MODULES) and parent in folders | roots:
            modules.append(name)
    return [name for name in modules if not is_foreign(top, name)]


def copy_file(source: Path, target: Path) -> None:
    """Copy a file or a link, and make its folder."""
    if source.is_file() or source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def lines(folder: Path) -> list[str]:
    """Return shell lines that put a snapshot, and its packages, first on Python's path."""
    try:
        root = json.loads((folder / "snapshot.json").read_bytes())["repository"]
        here = Path.cwd().resolve().relative_to(Path(root).resolve())
    except (OSError, ValueError, KeyError):
        raise ConfigError(
            f"'{folder}': the run's snapshot of its code was removed; run its command again instead"
            " of retry."
        ) from None
    code = folder / "code"
    roots = dict.fromkeys(str(root) for root in (code / here, code / "src", code) if root.is_dir())
    return [
        f"export {SNAPSHOT}={shlex.quote(str(folder / 'snapshot.json'))} PYTHONSAFEPATH=1",
        f"export PYTHONPATH={shlex.quote(os.pathsep.join(roots))}${{PYTHONPATH:+:$PYTHONPATH}}",
    ]
