"""The folder of a run's checkpoints: what is in it, how one is committed, which is used."""

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from launcher.checkpoint.files import FileEntry
from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, verify
from launcher.checkpoint.retention import Retention
from launcher.run.files import fsync_folder

STEP = re.compile(r"step-(\d{8,})$")
LATEST, BEST = "latest", "best"
TEMPORARY, REPLACED, CORRUPT = ".tmp-", ".replaced-", "corrupt-"


def step_name(step: int) -> str:
    return f"step-{step:08d}"


class CheckpointStore:
    """`checkpoints/step-00000100/`, with `latest` and `best` as links beside. One process writes: rank 0."""

    def __init__(self, root: Path, logger: logging.Logger | None = None):
        self.root = root
        self.logger = logger or logging.getLogger("launcher.checkpoint")
        self._begun = 0

    def steps(self) -> list[int]:
        """Steps that have a folder with a manifest, in order; whether it verifies is not asked."""
        if not self.root.is_dir():
            return []
        found = (STEP.match(entry.name) for entry in self.root.iterdir() if entry.is_dir() and not entry.is_symlink())
        return sorted(int(m.group(1)) for m in found if m and (self.root / m.group(0) / "manifest.json").exists())

    def path(self, step: int) -> Path:
        return self.root / step_name(step)

    def begin(self, step: int) -> Path:
        """An empty hidden folder to write into. Each has a name of its own: a writer that was given up and wakes up
        later must not meet its successor."""
        if not self.root.is_dir():
            self.root.mkdir(parents=True)
            fsync_folder(self.root.parent)
        self._begun += 1
        folder = self.root / f"{TEMPORARY}{step_name(step)}-{self._begun}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def discard(self, folder: Path) -> None:
        """Remove what a failed save has written: on a full disk the next one needs the room."""
        shutil.rmtree(folder, ignore_errors=True)

    def commit(self, folder: Path, manifest: Manifest, check: Callable[[], None] = lambda: None) -> Path:
        """Make a written folder the checkpoint of its step. Killed at any call in here, the one before stays whole.

        Args:
            check: called before the checkpoint gets its name; raises if it must not have it any more.
        Raises:
            OSError: it is not committed, and what was there before stands.
        """
        manifest.write(folder)
        fsync_folder(folder)
        final = self.path(manifest.step)
        replaced = self.root / f"{REPLACED}{final.name}"
        check()
        if final.exists():
            # Two renames: between them the old one has another name, which `recover` knows.
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(final, replaced)
        try:
            os.rename(folder, final)
        except OSError:
            if replaced.exists():
                os.rename(replaced, final)
            raise
        fsync_folder(self.root)
        return final

    def tidy(self, step: int, retention: Retention, is_best: bool = False) -> None:
        """After a commit: the links, and the end of what is not kept. The checkpoint is durable by now, so a failure in
        here is told and no more. Nothing is deleted unless the new one has all its files.
        """
        final = self.path(step)
        try:
            self.link(LATEST, final.name)
            if is_best:
                self.link(BEST, final.name)
            verify(final, hashes=False)
            shutil.rmtree(self.root / f"{REPLACED}{final.name}", ignore_errors=True)
            best = self.linked(BEST)
            for old in retention.to_remove(self.steps(), step, () if best is None else (best,)):
                self.remove(old)
        except (OSError, CorruptCheckpoint) as error:
            self.logger.error("Checkpoint %s is written, but tidying up after it failed: %s", final.name, error)

    def link(self, name: str, target: str) -> None:
        """Point `latest` or `best` somewhere, atomically."""
        temporary = self.root / f"{TEMPORARY}{name}"
        temporary.unlink(missing_ok=True)
        os.symlink(target, temporary)
        os.replace(temporary, self.root / name)
        fsync_folder(self.root)

    def linked(self, name: str) -> int | None:
        """The step that `latest` or `best` points to, if it is there."""
        try:
            found = STEP.match(os.readlink(self.root / name))
        except OSError:
            return None
        return int(found.group(1)) if found and self.path(int(found.group(1))).is_dir() else None

    def recover(self) -> None:
        """Tidy up after a writer that died: an old checkpoint whose replacement never came gets its name back."""
        if not self.root.is_dir():
            return
        for entry in list(self.root.iterdir()):
            if entry.name.startswith(REPLACED):
                final = self.root / entry.name.removeprefix(REPLACED)
                if final.exists():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    os.rename(entry, final)
            elif entry.name.startswith(TEMPORARY):
                entry.unlink() if entry.is_symlink() else shutil.rmtree(entry, ignore_errors=True)
        if (steps := self.steps()) and self.linked(LATEST) != steps[-1]:
            self.link(LATEST, step_name(steps[-1]))

    def newest_valid(self, hashes: bool | Callable[[FileEntry], bool] = True) -> tuple[Path, Manifest] | None:
        """The newest checkpoint that verifies. Those newer that do not are set aside and reported.

        Args:
            hashes: see `verify`.
        Returns:
            None: there is not one checkpoint, whole or broken or set aside.
        Raises:
            CorruptCheckpoint: there are some, and none is whole. Starting from step 0 would lose the run silently.
        """
        problems: list[str] = []
        for step in reversed(self.steps_with_broken()):
            folder = self.path(step)
            try:
                manifest = verify(folder, hashes)
                if problems:
                    self.link(LATEST, folder.name)
                return folder, manifest
            except CorruptCheckpoint as error:
                problems.append(str(error))
                self.set_aside(folder, error)
        broken = sorted(entry.name for entry in self.root.glob(f"{CORRUPT}*"))
        if problems or broken:
            raise CorruptCheckpoint("; ".join(problems) or f"only broken ones are left ({', '.join(broken)})")
        return None

    def steps_with_broken(self) -> list[int]:
        """As `steps`, and those without a manifest."""
        if not self.root.is_dir():
            return []
        found = (STEP.match(entry.name) for entry in self.root.iterdir() if entry.is_dir() and not entry.is_symlink())
        return sorted(int(m.group(1)) for m in found if m)

    def set_aside(self, folder: Path, why: CorruptCheckpoint) -> Path:
        """Rename a broken checkpoint, and say so; it is never deleted, for it may be the only one."""
        target, n = self.root / f"{CORRUPT}{folder.name}", 1
        while target.exists():
            n += 1
            target = self.root / f"{CORRUPT}{folder.name}.{n}"
        os.rename(folder, target)
        fsync_folder(self.root)
        self.logger.error("Checkpoint %s; set aside as %s, and the one before is used.", why, target.name)
        return target

    def remove(self, step: int) -> None:
        """Delete a checkpoint: under a hidden name first, so that half of one is never found."""
        folder = self.path(step)
        hidden = self.root / f"{TEMPORARY}remove-{folder.name}"
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(folder, hidden)
        shutil.rmtree(hidden, ignore_errors=True)
