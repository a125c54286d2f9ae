"""Files by which a run can be reproduced: uncommitted changes, and all distributions."""

import atexit
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from launcher.process.files import replace_file
from launcher.process.git import diff_of, head_of, list_submodules, list_untracked, run_git
from launcher.rundir.imported_sources import imported_files
from launcher.rundir.provenance import outside_snapshot, snapshot_file
from launcher.rundir.repositories import other_repositories, top_of
from launcher.rundir.secret_patterns import SECRET_TEXT

CODE, ENVIRONMENT = "code.diff", "environment.txt"
OTHERS = "code-*.diff"
"""The files of other repositories of which code was imported."""
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
HASH = re.compile(r"[0-9a-f]{40,64}")
SECRET_NAME = re.compile(
    rb"(?:^|[/._-])(?:secrets?|credentials?|passwords?|passwd|tokens?|api_?keys?|private|netrc|pypirc|htpasswd|kubeconfig"
    rb"|id_(?:rsa|dsa|ecdsa|ed25519)|env)(?:[._-][^/]*)?$|\.(?:pem|key|p12|pfx|jks|kdbx|env|asc|gpg)$",
    re.IGNORECASE,
)


ROOT = "# imported from: "
"""A folder of the repository in which Python looks for modules."""
SUBMODULE, REPOSITORY = "# submodule: ", "# repository: "


def keep(folder: Path, outputs: Path, is_new: bool) -> subprocess.Popen[bytes] | None:
    """Write `code.diff` and `environment.txt` in a process that training does not wait for.

    Each other repository of an imported file has a `code-<number>.diff`.

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
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=pipe, stdout=nothing, stderr=nothing)
    assert process.stdin is not None
    # The writer may have ended, and then nothing is written.
    with suppress(OSError), process.stdin as words:
        words.write(json.dumps(imported_files()).encode())
    atexit.register(process.wait)
    return process


def _write(folder: Path, outputs: Path) -> None:
    files = json.load(sys.stdin)
    # The run's own files are more important, and it reports a full disk itself.
    with suppress(OSError):
        for old in folder.glob(OTHERS):
            old.unlink()
        for number, other in enumerate(other_repositories(outside_snapshot(files.values())), 1):
            repository = REPOSITORY.encode() + os.fsencode(other) + b"\n"
            replace_file(
                folder / OTHERS.replace("*", str(number)),
                repository + code_diff(other, outputs, files),
            )
        replace_file(folder / CODE, _own_diff(outputs, files))
        replace_file(folder / ENVIRONMENT, environment().encode())


def _own_diff(outputs: Path, files: Mapping[str, str]) -> bytes:
    """Return the changes of the current folder's repository, or of the snapshot in its place."""
    if (snapshot := snapshot_file()) is None:
        return code_diff(Path.cwd(), outputs, files)
    saved = json.loads(snapshot.read_bytes())
    roots = _roots(snapshot.parent / "code", files)
    diff = (snapshot.parent / CODE).read_bytes()
    return _header(saved["commit"], saved["submodules"], roots) + _bound(diff)


def environment() -> str:
    """List all installed distributions, one per line, after a comment with the interpreter."""
    from importlib.metadata import distributions

    requirements = set()
    for distribution in distributions():
        # A distribution's `name` and `version` parse the whole file, twice: a third of the CPU time
        # of a short run.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        fields = dict(FIELD.findall(text.partition("\n\n")[0]))
        # The file direct_url.json says that a folder, a file or a repository was installed.
        is_local = distribution.read_text("direct_url.json") is not None
        if len(fields) == 2:
            mark = "  # not from an index" if is_local else ""
            requirements.add(f"{fields['Name']}=={fields['Version']}{mark}")
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    return "\n".join([f"# {interpreter}, {platform.platform()}", *sorted(requirements)]) + "\n"


def code_diff(code: Path, outputs: Path, files: Mapping[str, str] | None = None) -> bytes:
    """Return the changes of a working tree with its untracked sources, for `git apply`.

    Comments at the beginning list the commit, the submodules with theirs, the folders from which
    modules were imported, and the files that are left out because they are too large or look like
    secrets. It is empty without a repository with a commit.

    Args:
        code: a folder of the repository.
        outputs: a folder whose files are not code.
        files: paths of imported files, by the names of their modules.
    """
    root, commit = top_of(code), head_of(code)
    if root is None or commit is None:
        return b""
    submodules = {name: head_of(root / name) or "" for name in list_submodules(root)}
    diff = _diff(root, outputs)
    for name in submodules:
        diff += _diff(root / name, outputs, f"{name}/")
    return _header(commit, submodules, _roots(root, files or {})) + _bound(diff)


def _header(commit: str, submodules: Mapping[str, str], roots: Iterable[str]) -> bytes:
    lines = [f"{COMMIT}{commit}"]
    lines += [f"{SUBMODULE}{of_name} {name}" for name, of_name in submodules.items()]
    lines += [f"{ROOT}{root}" for root in roots]
    return os.fsencode("\n".join([*lines, ""]))


def _diff(root: Path, outputs: Path, prefix: str = "") -> bytes:
    """Return the changes of one repository; `prefix` is its folder in an outer one."""
    index = run_git(root, "rev-parse", "--path-format=absolute", "--git-path", "index")
    if not index:
        return b""
    with tempfile.TemporaryDirectory(prefix="launcher-index-") as folder:
        copy = Path(folder) / "index"
        # A repository without a staged file has no index.
        with suppress(FileNotFoundError):
            # Keep the index's time: git uses it to find files that were changed within the second
            # in which the index was written.
            shutil.copy2(os.fsdecode(index.strip()), copy)
        names = [f":(top,literal){name}" for name in _list_sources(root, outputs)]
        if names:
            run_git(root, "add", "--intent-to-add", "--", *names, index=copy)
        return diff_of(root, prefix, copy)


def _roots(top: Path, files: Mapping[str, str]) -> list[str]:
    """Return the folders of a repository, relative to its top, where imports begin."""
    roots = set()
    for name, file in files.items():
        path = Path(os.path.realpath(file))
        root = Path(str(path).removesuffix(name)) if str(path).endswith(name) else path.parent
        if root.is_relative_to(top):
            roots.add(str(root.relative_to(top)))
    return sorted(roots)


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
    changes = list[bytes]()
    comments = list[bytes]()
    total = 0
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
    submodules: dict[str, str] = field(default_factory=dict)
    """The commit of each submodule, by its folder."""
    repository: str | None = None
    """The top of the repository, if it is not the current folder's."""
    roots: list[str] = field(default_factory=list)
    """Folders of the repository where imports begin."""


def parse_code(stored: bytes) -> StoredCode:
    header, mark, rest = stored.partition(b"diff --git ")
    lines = os.fsdecode(header).splitlines()

    def values(key: str) -> list[str]:
        return [line.removeprefix(key) for line in lines if line.startswith(key)]

    commits, repositories = values(COMMIT), values(REPOSITORY)
    commit = commits[0] if commits and HASH.fullmatch(commits[0]) else None
    pairs = [value.partition(" ") for value in values(SUBMODULE)]
    submodules = {name: commit for commit, _, name in pairs if HASH.fullmatch(commit)}
    repository = repositories[0] if repositories else None
    return StoredCode(commit, mark + rest, values(LEFT_OUT), submodules, repository, values(ROOT))


if __name__ == "__main__":
    _write(*map(Path, sys.argv[1:]))
