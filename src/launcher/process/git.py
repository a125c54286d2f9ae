"""Git, in child processes."""

import os
import subprocess
from pathlib import Path

TIMEOUT = 60.0


def run_git(
    folder: str | os.PathLike[str],
    *arguments: str,
    index: Path | None = None,
    timeout: float = TIMEOUT,
) -> bytes | None:
    """Return the output of a git command, or None if it fails, takes too long, or is not installed.

    `index` is used in place of the repository's.
    """
    # Optional locks are off, since a run must not disturb a commit that its user makes at the same
    # time.
    variables = {"GIT_OPTIONAL_LOCKS": "0"}
    variables |= {} if index is None else {"GIT_INDEX_FILE": str(index)}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def head_of(top: Path) -> str | None:
    """Return the commit of a working tree, or None without one."""
    commit = run_git(top, "rev-parse", "--verify", "HEAD")
    return None if commit is None else commit.decode().strip()


def diff_of(top: Path, prefix: str = "", index: Path | None = None) -> bytes:
    """Return the changes since the commit of a repository, whose files have a prefix there."""
    options = "--binary --no-color --no-ext-diff --ignore-submodules"
    sides = (f"--src-prefix=a/{prefix}", f"--dst-prefix=b/{prefix}")
    return run_git(top, "diff", *options.split(), *sides, "HEAD", index=index) or b""


def list_files(folder: str | os.PathLike[str], *arguments: str) -> list[str]:
    """Return the names that a git command with `-z` prints."""
    output = run_git(folder, *arguments) or b""
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def list_submodules(top: Path) -> list[str]:
    """List the folders of the submodules of a repository, and of theirs, that have files."""
    if not (top / ".gitmodules").exists():
        return []
    each = r'printf "%s\0" "$displaypath"'
    return list_files(top, "submodule", "foreach", "--quiet", "--recursive", each)


def list_untracked(top: Path) -> list[str]:
    """List untracked files that are not ignored, see `is_foreign`."""
    names = list_files(top, "ls-files", "-z", "--others", "--exclude-standard")
    return [name for name in names if not is_foreign(top, name)]


def is_foreign(top: Path, name: str) -> bool:
    """Return whether a file is in a hidden folder, a virtual environment, or Python's cache."""
    return any(
        folder.name.startswith(".")
        or folder.name == "__pycache__"
        or (top / folder / "pyvenv.cfg").exists()
        for folder in Path(name).parents
    )
