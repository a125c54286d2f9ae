"""The code as it was at submission: a copy of the files that git tracks, with the commit and what differs from it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError

VARIABLE = "LAUNCHER_SNAPSHOT"


def take(folder: Path) -> list[str]:
    """Copy the repository around the working directory, and return the lines of shell that put the copy first.

    `snapshot.json` there has the commit; `code.diff` what the working tree had that the commit has not. Files that git
    does not track are not copied, but named in `snapshot.json`.

    Raises:
        ConfigError: there is no repository with a commit here.
    """
    top = _git("rev-parse", "--show-toplevel")
    commit = _git("rev-parse", "--verify", "HEAD")
    if top is None or commit is None:
        raise ConfigError(
            "dispatch.snapshot=true: the working directory is in no git repository with a commit; commit the code, or "
            "take dispatch.snapshot=false."
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
    told: dict[str, Any] = {"commit": commit.strip(), "dirty": bool(diff), "repository": str(root)}
    (folder / "snapshot.json").write_text(json.dumps({**told, "untracked": left_out}, indent=1) + "\n")
    return _lines(folder, code, root)


def _lines(folder: Path, code: Path, root: Path) -> list[str]:
    """A package may lie at the top, below src/, or in the folder one stands in."""
    here = code / Path.cwd().resolve().relative_to(root.resolve())
    places = dict.fromkeys(str(place) for place in (here, code / "src", code) if place.is_dir())
    return [
        f"export {VARIABLE}='{folder / 'snapshot.json'}' PYTHONSAFEPATH=1",
        f"export PYTHONPATH='{os.pathsep.join(places)}'${{PYTHONPATH:+:$PYTHONPATH}}",
    ]


def _git(*arguments: str, cwd: Path | None = None) -> str | None:
    try:
        found = subprocess.run(
            ["git", *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        return None
    return found.stdout if found.returncode == 0 else None
