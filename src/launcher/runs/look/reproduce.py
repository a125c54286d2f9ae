"""Print the commands that restore a run's code and packages in another folder."""

import argparse
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.checkpoint.drift import read_sources
from launcher.checkpoint.store import LATEST
from launcher.process.argument_parser import Parser, path_argument
from launcher.process.files import read_file
from launcher.process.git import run_git
from launcher.rundir.repositories import has_commit, top_of
from launcher.rundir.reproduction import CODE, ENVIRONMENT, OTHERS, StoredCode, parse_code
from launcher.rundir.training_history import changes_of_code, kept_attempts, step_before
from launcher.runs.find_runs import RUN_HELP, find_run
from launcher.runs.stored_run import StoredRun

PIN = "^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+]+$"
"""A line of environment.txt that an index has. Another line could be an option of the installer."""
PYTHON = re.compile(r"# \w+ (\d+\.\d+\.\d+)")
VARIANT = re.compile(r"^torch==[^+\s]+\+(cpu|cu\d+|rocm[\d.]+)$", re.MULTILINE)
"""The version of PyTorch's own index."""
LOCAL = re.compile(r"^(\S+)  # not from an index$", re.MULTILINE)

NO_REPOSITORY = "The run did not start in a git repository with a commit."
NO_COMMIT = "The repository had no commit."


def add_arguments(parser: Parser) -> None:
    parser.argument("run", "RUN", RUN_HELP)
    parser.argument(
        "--into", "DIR", "the new folder (default: reproduced/<id>)", type=path_argument
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the commands of a shell, and comments that say what is missing; return 1 if any is."""
    stored = find_run(arguments.run, arguments.outputs)
    target = Path(os.path.abspath(arguments.into or Path("reproduced") / stored.id))
    lines = [*code_lines(stored, target), *package_lines(stored, target), *change_lines(stored)]
    print(f"# {stored.label}", *lines, sep="\n", flush=True)
    return int(any(line.startswith("# Missing") for line in lines))


def code_lines(run: StoredRun, target: Path) -> Iterator[str]:
    """Yield the commands that make a git worktree of each commit of the run with its changes."""
    folder = run.folder.path.absolute()
    git = run.record.get("git") or {}
    try:
        code = parse_code(read_file(folder / CODE))
    except OSError:
        code = StoredCode(git.get("commit"), b"", [])
    is_dirty = bool(git.get("dirty")) and not code.submodules and not git.get("repositories")
    source = repository_with(str(code.commit))
    worktrees = [Worktree(code, folder / CODE, target, source, is_dirty)]
    for file in sorted(folder.glob(OTHERS)):
        other = parse_code(read_file(file))
        place = target.with_name(f"{target.name}-{Path(other.repository or 'other').name}")
        source = repository_with(str(other.commit), other.repository or os.curdir)
        worktrees.append(Worktree(other, file, place, source))
    for worktree in worktrees:
        yield from worktree.lines()
    yield from _import_lines(worktrees[1:])
    if all(worktree.is_complete for worktree in worktrees):
        sources = read_sources(folder / "checkpoints" / LATEST)
        for name in sources:
            if not any(worktree.has(name) for worktree in worktrees):
                yield f"# Missing: {name}, which trained the run and is in no stored repository."


def change_lines(run: StoredRun) -> Iterator[str]:
    """Yield a comment for each attempt that trained with other code than the first one."""
    for attempt in kept_attempts(run.attempts):
        if changes := changes_of_code(attempt):
            what = "; ".join(changes)
            yield f"# Missing: what trained the steps after {step_before(attempt)} ({what})"


@dataclass(frozen=True)
class Worktree:
    """A repository of a run, and the folder that it is restored in."""

    code: StoredCode
    file: Path
    target: Path
    source: Path | None
    """A repository that has the commit."""
    is_dirty: bool = False
    """The run has recorded changes of this repository alone."""

    @property
    def is_complete(self) -> bool:
        return self.source is not None and all(
            self._submodule(name) is not None for name in self.code.submodules
        )

    def _submodule(self, name: str) -> Path | None:
        """Return the folder of a submodule that has its commit, or None."""
        if self.source is None or Path(name).is_absolute() or ".." in Path(name).parts:
            return None
        return repository_with(self.code.submodules[name], self.source / name)

    def lines(self) -> Iterator[str]:
        code = self.code
        of = f" of {self.code.repository}" if self.code.repository else ""
        if code.commit is None:
            yield f"# Missing: the code{of}. {NO_COMMIT if of else NO_REPOSITORY}"
            return
        if self.source is None:
            yield (
                f"# Missing: commit {code.commit}{of}, which no git repository of the current"
                " folder has. Go to a clone that has it (git fetch --all)."
            )
            return
        yield _add_worktree(self.source, self.target, code.commit)
        for name, commit in code.submodules.items():
            source = self._submodule(name)
            if source is None:
                yield f"# Missing: commit {commit} of the submodule {name}: git submodule update."
            else:
                yield _add_worktree(source, self.target / name, commit)
        if code.diff:
            words = ["git", "-C", str(self.target), "apply", "--whitespace=nowarn", str(self.file)]
            yield shlex.join(words)
        elif self.is_dirty and not code.left_out:
            yield f"# Missing: {CODE}. The run had uncommitted changes."
        elif not code.left_out:
            yield f"# No changes to apply{of}: the working tree was clean."
        for name in code.left_out:
            yield f"# Missing in {self.file.name}: {name}."

    def has(self, name: str) -> bool:
        """Return whether an imported file is in the commit or its changes."""
        paths = [os.path.normpath(os.path.join(root, name)) for root in self.code.roots or ["."]]
        return any(map(self._has_path, paths))

    def _has_path(self, path: str) -> bool:
        if f"+++ b/{path}\n".encode() in self.code.diff:
            return True
        inside = [name for name in self.code.submodules if Path(path).is_relative_to(name)]
        source = self.source
        commit = str(self.code.commit)
        if inside:
            outer = max(inside, key=len)
            source = self._submodule(outer)
            commit = self.code.submodules[outer]
            path = os.path.relpath(path, outer)
        if source is None:
            return False
        return run_git(source, "cat-file", "-e", f"{commit}:{path}") is not None


def _add_worktree(repository: Path, target: Path, commit: str) -> str:
    words = ["git", "-C", str(repository), "worktree", "add", "--detach", str(target), commit]
    return shlex.join(words)


def _import_lines(worktrees: Sequence[Worktree]) -> Iterator[str]:
    """Yield the command that lets Python import from the other repositories of a run."""
    folders = [
        str(worktree.target / root)
        for worktree in worktrees
        if worktree.is_complete
        for root in worktree.code.roots
    ]
    if folders:
        paths = shlex.quote(os.pathsep.join(map(os.path.normpath, folders)))
        yield f"export PYTHONPATH={paths}${{PYTHONPATH:+:$PYTHONPATH}}"


def repository_with(commit: str, folder: str | Path = os.curdir) -> Path | None:
    """Return the top of a folder's repository, or None if it lacks the commit."""
    return top_of(folder) if has_commit(commit, folder) else None


def package_lines(run: StoredRun, target: Path) -> Iterator[str]:
    file = run.folder.path.absolute() / ENVIRONMENT
    environment = str(target / ".venv")
    try:
        text = read_file(file).decode()
    except (OSError, UnicodeDecodeError):
        yield f"# Missing: {ENVIRONMENT}, so the packages are not known."
        return
    version = PYTHON.match(text)
    variant = VARIANT.search(text)
    make = ["uv", "venv", *(["--python", version[1]] if version else []), environment]
    sync = ["uv", "pip", "sync", "--python", environment]
    sync += [f"--torch-backend={variant[1]}"] if variant else []
    pins = shlex.join(["grep", "-E", PIN, str(file)])
    yield f"{shlex.join(make)} && {pins} | {shlex.join(sync)} -"
    local = LOCAL.findall(text)
    if local:
        yield f"# Not from an index, so not installed: {', '.join(local)}."
