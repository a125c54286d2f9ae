"""Files by which a run can be reproduced: uncommitted changes, and all distributions."""

import gc
import json
import logging
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path
from typing import NoReturn

from launcher.process import signals
from launcher.process.child import describe_end
from launcher.process.files import replace_file
from launcher.process.git import diff_of, head_of, list_submodules, list_untracked, run_git
from launcher.rundir.imported_sources import imported_files
from launcher.rundir.provenance import outside_snapshot, snapshot_file
from launcher.rundir.repositories import other_repositories, top_of
from launcher.rundir.secret_patterns import SECRET_TEXT

logger = logging.getLogger("launcher")
CODE, ENVIRONMENT = "code.diff", "environment.txt"
FILES = f"{CODE} and {ENVIRONMENT}"
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


WAIT = 60.0
"""Seconds for which a run that ends waits for the files."""
PAUSE = 0.02
ROOT = "# imported from: "
"""A folder of the repository in which Python looks for modules."""
SUBMODULE, REPOSITORY = "# submodule: ", "# repository: "


def keep(
    folder: Path, outputs: Path, is_new: bool, is_ours: Callable[[], bool]
) -> Callable[[], None] | None:
    """Write `code.diff` and `environment.txt` in a process that training does not wait for.

    Each other repository of an imported file has a `code-<number>.diff`.

    A thread would not do: the data workers are forked at the same time, and a lock that the thread
    holds (the lock of `tempfile` had this effect) would stay locked in a worker forever. So the
    process is forked before the first data worker. Where it cannot be, training waits.

    Args:
        folder: the run's folder.
        outputs: the folder of all runs, none of which is code.
        is_new: the run starts at step 0, so files of an earlier attempt are replaced.
        is_ours: returns whether the run is still this attempt's. The process may outlive one that
            was killed, and a later attempt writes files of its own.

    Returns:
        A function that waits for the process, or None if there is none. It is called before the
        attempt gives up the run.
    """
    if not is_new and (folder / ENVIRONMENT).exists():
        return None
    _remove_old(folder)
    work = partial(_write, folder.absolute(), outputs.absolute(), imported_files(), is_ours)
    # A thread may hold the lock of this while it is set for the first time.
    tempfile.gettempdir()
    with signals.block():
        pid = _fork()
        if pid == 0:
            _end_after(work)
    if pid is None:
        try:
            work()
        # A run does not fail for these files.
        except Exception as error:
            logger.warning("%s are not complete: %s", FILES, error)
        return None
    return partial(_wait, pid)


def _remove_old(folder: Path) -> None:
    """Remove the files of an earlier attempt, which are of other code."""
    with suppress(OSError):
        for old in (folder / ENVIRONMENT, folder / CODE, *folder.glob(OTHERS)):
            old.unlink(missing_ok=True)


def _fork() -> int | None:
    """Fork; return the child's process id, 0 in the child, or None where there is no child."""
    # Libraries of macOS do not work in a forked process.
    if sys.platform != "linux":
        return None
    try:
        return os.fork()
    # Too many processes run, or memory for a copy of this one is missing.
    except OSError:
        return None


def _end_after(work: Callable[[], None]) -> NoReturn:
    """Work in a forked process, and end it without the functions that its parent calls at exit."""
    code = 1
    try:
        # Objects of the parent are never collected here: they may be tensors of a GPU.
        gc.disable()
        # A signal to the group must not leave the files incomplete.
        signals.ignore_in_child()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        # Pipes and sockets of the parent close when it ends.
        for number in map(int, os.listdir("/proc/self/fd")):
            # The folder's own descriptor is closed already.
            with suppress(OSError):
                if number > 2:
                    os.close(number)
        work()
        code = 0
    finally:
        os._exit(code)


def _wait(pid: int) -> None:
    """Wait for the process that writes the files, for at most `WAIT` seconds."""
    until = time.monotonic() + WAIT
    try:
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                logger.warning("%s are not complete after %g s.", FILES, WAIT)
                return
            time.sleep(PAUSE)
    # The user's own code may have waited for it before.
    except ChildProcessError:
        return
    if code := os.waitstatus_to_exitcode(ended[1]):
        logger.warning("%s are not complete: their process %s.", FILES, describe_end(code))


def _write(
    folder: Path, outputs: Path, files: Mapping[str, str], is_ours: Callable[[], bool]
) -> None:
    # The run's own files are more important, and it reports a full disk itself.
    with suppress(OSError):
        for name, content in _contents(outputs, files):
            if not is_ours():
                return
            replace_file(folder / name, content)


def _contents(outputs: Path, files: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield each file's name and content; `environment.txt` is the last."""
    for number, other in enumerate(other_repositories(outside_snapshot(files.values())), 1):
        repository = REPOSITORY.encode() + os.fsencode(other) + b"\n"
        yield OTHERS.replace("*", str(number)), repository + code_diff(other, outputs, files)
    yield CODE, _own_diff(outputs, files)
    yield ENVIRONMENT, environment().encode()


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
    root = top_of(code)
    commit = None if root is None else head_of(root)
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
