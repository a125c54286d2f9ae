"""The commits of the repository in the current folder: the base of a change, and a bisection."""

import os
from collections.abc import Callable
from pathlib import Path

from launcher.errors import ConfigError
from launcher.process.git import run_git


def git(root: Path, *arguments: str) -> str | None:
    """Return the output of a git command without its line end, or None if it fails."""
    output = run_git(root, *arguments)
    return None if output is None else os.fsdecode(output).rstrip("\n")


def resolve(root: Path, name: str, option: str) -> str:
    """Return the hash of a commit that an option names."""
    commit = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if commit is None:
        raise ConfigError(f"{option}={name}: there is no such commit here; git fetch may bring it.")
    return commit


def base_of_change(root: Path) -> str:
    """Return the commit that the code here is compared with by default.

    It is the last commit in common with the default branch. On that branch it is HEAD if tracked
    files have changed, else the commit before HEAD.
    """
    head = git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    branch = default_branch(root)
    base = None if branch is None else git(root, "merge-base", branch, "HEAD")
    is_shallow = git(root, "rev-parse", "--is-shallow-repository") == "true"
    if base == head or (base is None and not is_shallow):
        previous = git(root, "rev-parse", "--verify", "--quiet", "HEAD~1")
        base = previous if is_equal_tree(root, "HEAD") else head
    if base is None:
        text = "there is no earlier commit to compare with; commit a change."
        if is_shallow:
            text = (
                "this clone has no history to compare with; add fetch-depth: 0 to actions/checkout,"
                " or run git fetch --unshallow."
            )
        raise ConfigError(f"guard: {text}")
    return base


def base_or(root: Path, against: str | None, option: str) -> str:
    """Return the commit that an option names, or the base of the change."""
    if against is None:
        return base_of_change(root)
    return resolve(root, against, option)


def default_branch(root: Path) -> str | None:
    """Return the default branch of `origin`, else `main` or `master`, or None without any."""
    name = git(root, "symbolic-ref", "--quiet", "refs/remotes/origin/HEAD")
    if name is not None:
        return name
    names = ("origin/main", "origin/master", "main", "master")
    return next((n for n in names if git(root, "rev-parse", "--verify", "--quiet", n)), None)


def is_equal_tree(root: Path, commit: str) -> bool:
    """Return whether the tracked files of the working tree equal a commit."""
    return git(root, "diff", "--quiet", commit) is not None


def describe(root: Path, commit: str) -> str:
    """Return the abbreviated hash of a commit and its subject."""
    return git(root, "show", "--no-patch", "--format=%h %s", commit) or commit


def is_ancestor(root: Path, commit: str, of: str) -> bool:
    """Return whether a commit comes before another one, or is that one."""
    return git(root, "merge-base", "--is-ancestor", commit, of) is not None


def bisect(
    root: Path, good: str, bad: str, is_good: Callable[[str], bool | None]
) -> tuple[str | None, list[str]]:
    """Find the first bad commit between a good one and a bad one.

    Nothing in the repository changes: git is asked for the commit that halves the others.

    Args:
        root: the repository.
        good: a commit whose training is the expected one.
        bad: a later commit whose training is another one.
        is_good: whether a commit trains as the good one does, or None if it cannot be trained.
    Returns:
        The first bad commit, or None if commits that cannot be trained hide it, and these.
    """
    goods = [good]
    untrained = list[str]()
    while True:
        excluded = [f"^{commit}" for commit in goods]
        listed = git(root, "rev-list", "--bisect-all", bad, *excluded) or ""
        candidates = [line.split()[0] for line in listed.splitlines()]
        left = [commit for commit in candidates if commit not in (bad, *untrained)]
        if not left:
            hidden = [commit for commit in candidates if commit in untrained]
            return (None if hidden else bad), hidden
        verdict = is_good(left[0])
        if verdict is None:
            untrained.append(left[0])
        elif verdict:
            goods.append(left[0])
        else:
            bad = left[0]
