"""Keep the graphs that torch.compile has compiled.

The next launch of the same program does not compile them again.
"""

import hashlib
import json
import logging
import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from launcher.hooks.base import BaseHook, TrainerView
from launcher.rundir.provenance import processor, versions
from launcher.rundir.sources import imported_sources

logger = logging.getLogger("launcher")

UNUSED_FOR = 30 * 24 * 3600
"""Seconds after which an unused file is removed."""
DIGEST = hashlib.sha256().digest_size


class UnsafeError(Exception):
    """Someone else could have written a file.

    Its content is pickled, so its writer could run code as the user who reads it.
    """


class CompiledGraphsHook(BaseHook):
    """Stores compiled graphs, and reads the graphs of an earlier launch.

    It stores the artifacts of `torch.compiler.save_cache_artifacts` after the first step and at the
    end.

    Torch looks each graph up by its content and by its own version, so a graph that has changed is
    compiled.

    Args:
        parts: parts of the program that the graphs depend on. With versions, processor and the
            user's own imported files, they name the file.
        rank: the rank, which has a file of its own.
        folder: the folder of the files. Default None: `launcher/compiled` in the user's cache
            folder.
    """

    def __init__(self, parts: dict[str, object], rank: int, folder: Path | None = None):
        self.path = (folder or cache_folder()) / f"{_key(parts)}-{rank}.bin"
        self._known: set[str] = set()
        self._has_saved = False
        self.found = "none of an earlier start"
        """The graphs that this launch need not compile, for its summary."""

    def read(self) -> None:
        """Pass the stored graphs to torch. Call it before the first graph is compiled."""
        try:
            data = read_own(self.path)
        except FileNotFoundError:
            return
        except (OSError, UnsafeError) as error:
            self.found = f"none, since {error}"
            return
        digest, data = data[:DIGEST], data[DIGEST:]
        if hashlib.sha256(data).digest() != digest:
            self.found = f"none, since {self.path} is damaged"
            return
        info = torch.compiler.load_cache_artifacts(data)
        if info is None:
            self.found = f"none, since torch cannot read {self.path}"
            return
        self._known = _keys(info)
        self.found = f"{len(info.artifacts['inductor'])} of an earlier start"
        with suppress(OSError):
            os.utime(self.path)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if not self._has_saved:
            self._has_saved = True
            self._save()

    def on_close(self, trainer: TrainerView) -> None:
        self._save()

    def _save(self) -> None:
        """Store the graphs if there are new ones. Training does not depend on it."""
        saved = torch.compiler.save_cache_artifacts()
        if saved is None or (keys := _keys(saved[1])) <= self._known:
            return
        try:
            write_own(self.path, hashlib.sha256(saved[0]).digest() + saved[0])
            _remove_unused(self.path.parent)
        except (OSError, UnsafeError) as error:
            logger.info("The compiled graphs are not kept: %s.", error)
            return
        self._known = keys


def cache_folder() -> Path:
    """The folder of compiled graphs in the user's cache folder, `~/.cache` by default."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "launcher" / "compiled"


def read_own(path: Path) -> bytes:
    """Return the content of a file that only the current user can have written.

    Raises:
        UnsafeError: another user could have written it, or has made its folder.
        OSError: it cannot be read.
    """
    folder = _open_folder(path.parent)
    try:
        # Open it relative to the folder that was checked, since the folder's name may mean another
        # one by now.
        fd = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        with open(fd, "rb") as file:
            _check_own(os.fstat(fd), path, stat.S_IFREG)
            return file.read()
    finally:
        os.close(folder)


def write_own(path: Path, data: bytes) -> None:
    """Write a file, atomically, that no other user can write or read.

    Several processes may write it at the same time.

    Raises:
        UnsafeError: another user could write into its folder.
        OSError: it cannot be written.
    """
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    os.close(_open_folder(path.parent))
    # Its mode is 600.
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _open_folder(path: Path) -> int:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _check_own(os.fstat(folder), path, stat.S_IFDIR)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _check_own(status: os.stat_result, path: Path, kind: int) -> None:
    """Check that only the current user can have written something.

    Raises:
        UnsafeError: it has another kind or another owner, or others may write it.
    """
    if stat.S_IFMT(status.st_mode) != kind or status.st_uid != os.geteuid():
        raise UnsafeError(f"{path} belongs to another user, or is not a file; remove it")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeError(f"others may write {path}; chmod go-w it")


def _remove_unused(folder: Path) -> None:
    for path in folder.iterdir():
        if time.time() - path.stat().st_mtime > UNUSED_FOR:
            path.unlink(missing_ok=True)


def _key(parts: dict[str, Any]) -> str:
    code = {"versions": versions(), "sources": imported_sources(), "processor": processor()}
    text = json.dumps({**parts, **code}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _keys(info: Any) -> set[str]:
    return {key for keys in info.artifacts.values() for key in keys}
