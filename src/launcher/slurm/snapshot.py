"""The code at submission: a copy of the files that git tracks, with the commit and the difference from it."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError

VARIABLE = "LAUNCHER_SNAPSHOT"


def take(folder: Path) -> Path:
    """Copy the repository of the current folder, with its submodules, to `folder`; returns `folder`.

    `snapshot.json` has the commits, `code.diff` the uncommitted changes. Files that git does not track are not copied,
    but listed in `snapshot.json`.

    Raises:
        ConfigError: the current folder is not in a repository with a commit.
    """
    top = _git("rev-parse", "--show-toplevel")
    commit = _git("rev-parse", "--verify", "HEAD")
    if top is None or commit is None:
        raise ConfigError(
            "dispatch.snapshot=true: the working directory is not in a git repository with a commit; commit the code, "
            "or use dispatch.snapshot=false."
        )
    root = Path(top.strip())
    submodules = _listed(root, "submodule", "foreach", "--quiet", "--recursive", r'printf "%s\0" "$displaypath"')
    diff, untracked, commits = "", [], {}
    for place in ("", *submodules):
        for name in _listed(root / place, "ls-files", "-z"):
            _copy(root / place / name, folder / "code" / place / name)
        prefixes = [
            f"--{side}-prefix={letter}/{place}{'/' if place else ''}" for side, letter in (("src", "a"), ("dst", "b"))
        ]
        diff += _git("diff", "--binary", "--ignore-submodules", *prefixes, "HEAD", cwd=root / place) or ""
        untracked += [
            str(Path(place, name)) for name in _listed(root / place, "ls-files", "-z", "-o", "--exclude-standard")
        ]
        commits[place] = (_git("rev-parse", "HEAD", cwd=root / place) or "").strip()
    (folder / "code.diff").write_text(diff, errors="surrogateescape")
    moved = _git("submodule", "status", "--recursive", cwd=root) or ""
    saved: dict[str, Any] = {
        "commit": commits.pop(""),
        "dirty": bool(diff) or any(line.startswith("+") for line in moved.splitlines()),
        "repository": str(root),
        "submodules": commits,
        "untracked": untracked,
    }
    (folder / "snapshot.json").write_text(json.dumps(saved, indent=1) + "\n")
    return folder


def _copy(source: Path, target: Path) -> None:
    if source.is_file() or source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def lines(folder: Path) -> list[str]:
    """The shell lines that put a snapshot first on Python's path. A package may be at the top, below src/, or in the
    current folder.

    Raises:
        ConfigError: the snapshot was removed, or is not one of the current folder's repository.
    """
    try:
        root = json.loads((folder / "snapshot.json").read_bytes())["repository"]
        here = Path.cwd().resolve().relative_to(Path(root).resolve())
    except (OSError, ValueError, KeyError):
        raise ConfigError(
            f"'{folder}': the run's snapshot of its code was removed; run its command again instead of retry."
        ) from None
    code = folder / "code"
    places = dict.fromkeys(str(place) for place in (code / here, code / "src", code) if place.is_dir())
    return [
        f"export {VARIABLE}={shlex.quote(str(folder / 'snapshot.json'))} PYTHONSAFEPATH=1",
        f"export PYTHONPATH={shlex.quote(os.pathsep.join(places))}${{PYTHONPATH:+:$PYTHONPATH}}",
    ]


def _listed(cwd: Path, *arguments: str) -> list[str]:
    """The names that a git command prints, each with a NUL at its end."""
    return [name for name in (_git(*arguments, cwd=cwd) or "").split("\0") if name]


def _git(*arguments: str, cwd: Path | None = None) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
