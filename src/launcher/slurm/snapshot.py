"""The code at submission: a copy of the files that git tracks, with the commit and the difference from it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError

VARIABLE = "LAUNCHER_SNAPSHOT"


def take(folder: Path) -> list[str]:
    """Copy the repository of the working directory; returns the shell lines that put the copy first on the path.

    `snapshot.json` has the commit, `code.diff` the uncommitted changes. Files that git does not track are not copied,
    but listed in `snapshot.json`.

    Raises:
        ConfigError: the working directory is not in a repository with a commit.
    """
    top = _git("rev-parse", "--show-toplevel")
    commit = _git("rev-parse", "--verify", "HEAD")
    if top is None or commit is None:
        raise ConfigError(
            "dispatch.snapshot=true: the working directory is not in a git repository with a commit; commit the code, "
            "or take dispatch.snapshot=false."
        )
    root = Path(top.strip())
    code = folder / "code"
    for name in (_git("ls-files", "-z", cwd=root) or "").split("\0"):
        source = root / name
        if name and (source.is_file() or source.is_symlink()):
            target = code / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    diff = _git("diff", "--binary", "HEAD", cwd=root) or ""
    (folder / "code.diff").write_text(diff, errors="surrogateescape")
    left_out = [
        name for name in (_git("ls-files", "-z", "-o", "--exclude-standard", cwd=root) or "").split("\0") if name
    ]
    saved: dict[str, Any] = {"commit": commit.strip(), "dirty": bool(diff), "repository": str(root)}
    (folder / "snapshot.json").write_text(json.dumps({**saved, "untracked": left_out}, indent=1) + "\n")
    return _lines(folder, code, root)


def _lines(folder: Path, code: Path, root: Path) -> list[str]:
    """A package may be at the top, below src/, or in the current folder."""
    here = code / Path.cwd().resolve().relative_to(root.resolve())
    places = dict.fromkeys(str(place) for place in (here, code / "src", code) if place.is_dir())
    return [
        f"export {VARIABLE}='{folder / 'snapshot.json'}' PYTHONSAFEPATH=1",
        f"export PYTHONPATH='{os.pathsep.join(places)}'${{PYTHONPATH:+:$PYTHONPATH}}",
    ]


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
