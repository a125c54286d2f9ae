"""Git in a test's own repositories."""

import subprocess
from pathlib import Path


def git(folder: Path, *words: str, input: bytes | None = None) -> bytes:
    """The output of a command of a user who has a name."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, input=input).stdout


def commit(folder: Path) -> None:
    """Commit all that is not ignored, in a new repository if there is none."""
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a commit")
