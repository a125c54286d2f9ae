"""Print the commands that restore a run's code and packages in another folder."""

import argparse
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from launcher.process.argument_parser import Parser, path_argument
from launcher.process.git import run_git
from launcher.rundir.reproduction import CODE, ENVIRONMENT, StoredCode, parse_code
from launcher.runs.find_runs import RUN_HELP, find_run
from launcher.runs.stored_run import StoredRun

PIN = "^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+]+$"
"""A line of environment.txt that an index has. Another line could be an option of the installer."""
PYTHON = re.compile(r"# \w+ (\d+\.\d+\.\d+)")
VARIANT = re.compile(r"^torch==[^+\s]+\+(cpu|cu\d+|rocm[\d.]+)$", re.MULTILINE)
"""The version of PyTorch's own index."""
LOCAL = re.compile(r"^(\S+)  # not from an index$", re.MULTILINE)


def add_arguments(parser: Parser) -> None:
    parser.argument("run", "RUN", RUN_HELP)
    parser.argument(
        "--into", "DIR", "the new folder (default: reproduced/<id>)", type=path_argument
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the commands of a shell, and comments that say what is missing; return 1 if any is."""
    stored = find_run(arguments.run, arguments.outputs)
    target = Path(os.path.abspath(arguments.into or Path("reproduced") / stored.id))
    lines = [*code_lines(stored, target), *package_lines(stored, target)]
    print(f"# {stored.label}", *lines, sep="\n", flush=True)
    return int(any(line.startswith("# Missing") for line in lines))


def code_lines(run: StoredRun, target: Path) -> Iterator[str]:
    """Yield the commands that make a git worktree of the run's commit with its changes."""
    file, git = run.folder.path.absolute() / CODE, run.record.get("git") or {}
    try:
        code = parse_code(file.read_bytes())
    except OSError:
        code = StoredCode(git.get("commit"), b"", [])
    if code.commit is None:
        yield "# Missing: the code. The run did not start in a git repository with a commit."
        return
    commit = str(code.commit)
    repository = repository_with(commit)
    if repository is None:
        yield (
            f"# Missing: commit {commit}, which no git repository of the current folder has. Go to"
            " a clone that has it (git fetch --all)."
        )
        return
    folder = str(target)
    yield shlex.join(["git", "-C", str(repository), "worktree", "add", "--detach", folder, commit])
    if code.diff:
        yield shlex.join(["git", "-C", folder, "apply", "--whitespace=nowarn", str(file)])
    elif git.get("dirty") and not code.left_out:
        yield f"# Missing: {CODE}. The run had uncommitted changes."
    elif not code.left_out:
        yield "# No changes to apply: the working tree was clean."
    for name in code.left_out:
        yield f"# Missing in {CODE}: {name}."


def repository_with(commit: str) -> Path | None:
    """Return the top of the current folder's repository, or None if it lacks the commit."""
    top = run_git(os.getcwd(), "rev-parse", "--show-toplevel")
    if top is None or run_git(os.getcwd(), "cat-file", "-e", f"{commit}^{{commit}}") is None:
        return None
    return Path(os.fsdecode(top).removesuffix("\n"))


def package_lines(run: StoredRun, target: Path) -> Iterator[str]:
    file, environment = run.folder.path.absolute() / ENVIRONMENT, str(target / ".venv")
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        yield f"# Missing: {ENVIRONMENT}, so the packages are not known."
        return
    version, variant = PYTHON.match(text), VARIANT.search(text)
    make = ["uv", "venv", *(["--python", version[1]] if version else []), environment]
    sync = ["uv", "pip", "sync", "--python", environment]
    sync += [f"--torch-backend={variant[1]}"] if variant else []
    pins = shlex.join(["grep", "-E", PIN, str(file)])
    yield f"{shlex.join(make)} && {pins} | {shlex.join(sync)} -"
    if local := LOCAL.findall(text):
        yield f"# Not from an index, so not installed: {', '.join(local)}."
