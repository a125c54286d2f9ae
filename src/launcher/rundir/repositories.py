"""The git repositories of the files that a process has imported."""

import os
from collections.abc import Iterable
from pathlib import Path

from launcher.process.git import run_git


def top_of(folder: str | os.PathLike[str]) -> Path | None:
    """Return the top of a folder's repository, or None without one."""
    output = run_git(folder, "rev-parse", "--show-toplevel")
    return None if output is None else Path(os.fsdecode(output).removesuffix("\n"))


def other_repositories(files: Iterable[str], code: Path | None = None) -> list[Path]:
    """Return the tops of the repositories of files that are not below the current one's.

    Args:
        files: paths of imported files.
        code: a folder of the current repository. Default None: the current folder.
    """
    here = top_of(Path.cwd() if code is None else code)
    tops = [] if here is None else [here]
    for folder in sorted({os.path.dirname(os.path.realpath(file)) for file in files}):
        if not any(Path(folder).is_relative_to(top) for top in tops):
            top = top_of(folder)
            tops += [] if top is None else [top]
    return [top for top in tops if top != here]
