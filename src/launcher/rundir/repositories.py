"""The git repositories of the files that a process has imported."""

import os
from collections.abc import Iterable
from pathlib import Path

from launcher.process.git import run_git


def top_of(folder: str | os.PathLike[str]) -> Path | None:
    """Return the top of a folder's repository, or None without one."""
    output = run_git(folder, "rev-parse", "--show-toplevel")
    if output is None:
        return None
    return Path(os.fsdecode(output).removesuffix("\n"))


def has_commit(commit: str, folder: str | os.PathLike[str] = os.curdir) -> bool:
    """Return whether the repository of a folder has a commit."""
    return run_git(folder, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def other_repositories(files: Iterable[str]) -> list[Path]:
    """Return the tops of the repositories of files that are not below the current folder's."""
    here = top_of(Path.cwd())
    tops = [] if here is None else [here]
    for folder in map(Path, sorted({os.path.dirname(os.path.realpath(file)) for file in files})):
        if any(folder.is_relative_to(top) for top in tops) or not _may_have_one(folder):
            continue
        top = top_of(folder)
        if top is not None:
            tops.append(top)
    return [top for top in tops if top != here]


def _may_have_one(folder: Path) -> bool:
    """Return whether a folder may be in a repository. Git takes longer to find none."""
    return any((above / ".git").exists() for above in (folder, *folder.parents))
