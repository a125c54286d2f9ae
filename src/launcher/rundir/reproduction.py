"""Files by which a run can be reproduced: uncommitted changes, and all distributions."""

import atexit
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from launcher.process.files import replace_file
from launcher.process.git import list_untracked, run_git
from launcher.rundir.secret_patterns import SECRET_TEXT

CODE, ENVIRONMENT = "code.diff", "environment.txt"
SUFFIXES = (
    *(".py", ".pyi", ".yaml", ".yml", ".toml", ".cfg", ".sh"),
    *(".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"),
)
"""Suffixes of untracked files that are kept."""
MAX_FILE_BYTES, MAX_TOTAL_BYTES = 1 << 20, 1 << 23
"""Maximum size in bytes of one file's difference, and of all differences together."""
MAX_UNTRACKED = 500
FIELD = re.compile(r"^(Name|Version): *(.*?)\s*$", re.MULTILINE)
COMMIT, LEFT_OUT = "# commit: ", "# left out: "
SECRET_NAME = re.compile(
    rb"(?:^|[/._-])(?:secrets?|credentials?|passwords?|passwd|tokens?|api_?keys?|private|netrc|pypirc|htpasswd|kubeconfig"
    rb"|id_(?:rsa|dsa|ecdsa|ed25519)|env)(?:[._-][^/]*)?$|\.(?:pem|key|p12|pfx|jks|kdbx|env|asc|gpg)$",
    re.IGNORECASE,
)


def keep(folder: Path, outputs: Path, is_new: bool) -> subprocess.Popen[bytes] | None:
    """Write `code.diff` and `environment.txt` in a process that training does not wait for.

    A thread would not do: the data workers are forked at the same time, and a lock that the thread
    holds (the lock of `tempfile` had this effect) would stay locked in a worker forever.

    Args:
        folder: the run's folder.
        outputs: the folder of all runs, none of which is code.
        is_new: the run starts at step 0, so files of an earlier attempt are replaced.

    Returns:
        The process, which is waited for when this one exits, or None if the files exist.
    """
    if not is_new and (folder / ENVIRONMENT).exists():
        return None
    command = [sys.executable, "-m", __name__, str(folder.absolute()), str(outputs.absolute())]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)
    atexit.register(process.wait)
    return process


def _write(folder: Path, outputs: Path) -> None:
    # The run's own files are more important, and it reports a full disk itself.
    with suppress(OSError):
        replace_file(folder / CODE, code_diff(Path.cwd(), outputs))
        replace_file(folder / ENVIRONMENT, environment().encode())


def environment() -> str:
    """List all installed distributions, one per line, after a comment with the interpreter."""
    from importlib.metadata import distributions

    requirements = set()
    for distribution in distributions():
        # Its `name` and `version` parse the whole file, twice: a third of the CPU time of a short
        # run.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        fields = dict(FIELD.findall(text.partition("\n\n")[0]))
        # It was installed from a folder, a file or a repository.
        is_local = distribution.read_text("direct_url.json") is not None
        if len(fields) == 2:
            mark = "  # not from an index" if is_local else ""
            requirements.add(f"{fields['Name']}=={fields['Version']}{mark}")
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    return "\n".join([f"# {interpreter}, {platform.platform()}", *sorted(requirements)]) + "\n"


def code_diff(code: Path, outputs: Path) -> bytes:
    """Return the changes of a working tree with its untracked sources, for `git apply`.

    Comments at the beginning list the commit, and the files that are left out because they are too
    large or look like secrets. It is empty without a repository with a commit.

    Args:
        code: a folder of the repository.
        outputs: a folder whose files are not code.
    """
    commit = run_git(code, "rev-parse", "--verify", "HEAD")
    top = run_git(code, "rev-parse", "--show-toplevel")
    index = run_git(code, "rev-parse", "--path-format=absolute", "--git-path", "index")
    if not commit or not top or not index:
        return b""
    root = Path(os.fsdecode(top.strip()))
    with tempfile.TemporaryDirectory(prefix="launcher-index-") as folder:
        copy = Path(folder) / "index"
        # Nothing was ever added.
        with suppress(FileNotFoundError):
            # Keep the index's time: git uses it to find files that were changed within the second
            # in which the index was written.
            shutil.copy2(os.fsdecode(index.strip()), copy)
        names = [f":(top,literal){name}" for name in _list_sources(root, outputs)]
        if names:
            run_git(root, "add", "--intent-to-add", "--", *names, index=copy)
        options = "--binary --no-color --no-ext-diff --ignore-submodules"
        diff = run_git(root, "diff", *options.split(), "HEAD", index=copy)
    return COMMIT.encode() + commit + _bound(diff or b"")


def _list_sources(root: Path, outputs: Path) -> list[str]:
    """Return the untracked sources below a folder, but for secrets and hidden folders."""
    sources = (
        name
        for name in list_untracked(root)
        if name.endswith(SUFFIXES)
        and not SECRET_NAME.search(os.fsencode(name))
        and not (root / name).is_relative_to(outputs.absolute())
        and not (root / name).is_symlink()
        and (root / name).stat().st_size <= MAX_FILE_BYTES
    )
    return list(islice(sources, MAX_UNTRACKED))


def _bound(diff: bytes) -> bytes:
    """Remove files that look like secrets or are too large from a difference."""
    changes, comments, total = list[bytes](), list[bytes](), 0
    for part in re.split(rb"^(?=diff --git )", diff, flags=re.MULTILINE):
        name = part.partition(b"\n")[0].rpartition(b" b/")[2].strip(b'"')
        total += len(part)
        if SECRET_NAME.search(name) or SECRET_TEXT.search(part.decode(errors="replace")):
            comments.append(name + b" (looks like a secret)")
        elif len(part) > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES:
            comments.append(name + b" (too large)")
        else:
            changes.append(part)
    return b"".join([*(LEFT_OUT.encode() + comment + b"\n" for comment in comments), *changes])


@dataclass(frozen=True)
class StoredCode:
    """A run's commit, its changes, and the files that are missing in them, with reasons."""

    commit: str | None
    diff: bytes
    left_out: list[str]


def parse_code(stored: bytes) -> StoredCode:
    header, mark, rest = stored.partition(b"diff --git ")
    lines = header.decode(errors="replace").splitlines()
    commits = [line.removeprefix(COMMIT) for line in lines if line.startswith(COMMIT)]
    commit = commits[0] if commits and re.fullmatch(r"[0-9a-f]{40,64}", commits[0]) else None
    missing = [line.removeprefix(LEFT_OUT) for line in lines if line.startswith(LEFT_OUT)]
    return StoredCode(commit, mark + rest, missing)


if __name__ == "__main__":
    _write(*map(Path, sys.argv[1:]))
