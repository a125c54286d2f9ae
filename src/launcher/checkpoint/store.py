"""The folder of a run's checkpoints: it commits, lists, and finds the one to resume from."""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.checkpoint.durable_files import FileEntry
from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, UnsupportedCheckpoint, verify
from launcher.checkpoint.retention import Retention
from launcher.errors import ConfigError
from launcher.process.files import first_unused, fsync_folder, read_file
from launcher.rundir.folder import STEP, checkpoint_steps, step_name

if TYPE_CHECKING:
    from launcher.checkpoint.chain import ChainWriter

LATEST = "latest"
BEST = "best"
NOTES = "checkpointing"
"""The key of the checkpointing hook's state, within the states of all hooks."""
TEMPORARY = ".tmp-"
REPLACED = ".replaced-"
CORRUPT = "corrupt-"
ABANDONED = "abandoned-"


class CheckpointStore:
    """`checkpoints/step-00000100/`, and the links `latest` and `best` next to it.

    Only rank 0 writes. The links are for people, and are rebuilt from the checkpoints if they are
    missing or wrong.

    Args:
        root: the folder of the checkpoints.
        link: its place in the run's folder, where people and `launcher.runs` look for it. If that
            is another folder, this becomes a link to `root`. None if no link is needed.
        names: `<name>/<id>` of the run. Checkpoints of other runs are neither resumed from nor
            deleted. If it is empty, all checkpoints are its own.
    """

    def __init__(
        self,
        root: Path,
        logger: logging.Logger | None = None,
        link: Path | None = None,
        names: Collection[str] = (),
    ):
        self.root = root
        self.link_path = link
        self.names = names
        self.logger = logger or logging.getLogger("launcher.checkpoint")
        self.check_lock: Callable[[], None] = lambda: None
        """Called before each commit, since another process may have taken the run over."""
        self.chain: ChainWriter | None = None
        """The writer of a line for each checkpoint, if the run has a chain."""
        self._begun = 0
        self._set_aside: set[str] = set()

    def steps(self) -> list[int]:
        """Return steps of folders with a manifest, ascending and not verified."""
        return checkpoint_steps(self.root)

    def steps_with_broken(self) -> list[int]:
        return checkpoint_steps(self.root, broken=True)

    def path(self, step: int) -> Path:
        return self.root / step_name(step)

    # --------------------------------------------------------------------------------------- commit
    def begin(self, step: int) -> Path:
        """Make a new hidden folder to write into.

        Each has its own name, so that an abandoned writer that wakes up later does not write into
        its successor's folder.
        """
        if not self.root.is_dir():
            # A run whose whole folder was removed stops here.
            self.check_lock()
            # The root may be a link, whose target need not exist.
            root = Path(os.path.realpath(self.root))
            root.mkdir(parents=True)
            fsync_folder(root.parent)
        self._lead_here()
        self._begun += 1
        folder = self.root / f"{TEMPORARY}{step_name(step)}-{self._begun}"
        folder.mkdir()
        return folder

    def discard(self, folder: Path) -> None:
        """Remove a failed save. On a full disk the next save needs the space."""
        shutil.rmtree(folder, ignore_errors=True)

    def commit(
        self, folder: Path, manifest: Manifest, check: Callable[[], None] = lambda: None
    ) -> Path:
        """Make a written folder the checkpoint of its step.

        A kill or an error at any call in here leaves the previous one valid. `check` raises, before
        the checkpoint gets its name, if it must not be committed any more.
        """
        # The manifest is the last file, so a folder that has one is complete.
        manifest.write(folder)
        fsync_folder(folder)
        final = self.path(manifest.step)
        replaced = self.root / f"{REPLACED}{final.name}"
        # As late as possible, since another process may take the run over while this one writes.
        check()
        self.check_lock()
        if final.exists() and not self.is_own(final):
            self._rename_aside(final, ABANDONED)
        if final.exists():
            # Between the two renames, the old one has another name, which `recover` knows.
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(final, replaced)
        try:
            os.rename(folder, final)
        except OSError:
            if replaced.exists():
                os.rename(replaced, final)
            raise
        # Only now a power cut cannot undo the rename.
        fsync_folder(self.root)
        return final

    def tidy(
        self,
        step: int,
        retention: Retention,
        is_best: bool = False,
        advanced: Callable[[], None] = lambda: None,
    ) -> None:
        """Update the links after a commit, and delete what is not kept.

        The checkpoint is durable already, so a failure in here is only logged. Nothing is deleted
        unless the new one has all its files.
        """
        final = self.path(step)
        try:
            self.link(LATEST, final.name)
            if is_best:
                self.mark_best(step)
            verify(final, hashes=False)
            shutil.rmtree(self.root / f"{REPLACED}{final.name}", ignore_errors=True)
            awaited = retention.awaited()
            bests = [self.best(), *map(self._best_at, awaited)]
            protected = {*awaited, *(best for best in bests if best is not None)}
            for old in retention.to_remove(self.steps(), step, protected):
                if self.is_own(self.path(old)):
                    if self.chain is not None:
                        self.chain.wait_for(old, advanced)
                    self.remove(old)
        except (OSError, CorruptCheckpoint) as error:
            self.logger.error(
                "Checkpoint %s is written, but tidying up after it failed: %s", final.name, error
            )

    def remove(self, step: int) -> None:
        """Delete a checkpoint under a hidden name, so that no half of it is visible."""
        self._delete(self.path(step))

    def _delete(self, folder: Path) -> None:
        shutil.rmtree(self.hide(folder), ignore_errors=True)

    def hide(self, folder: Path) -> Path:
        """Give a checkpoint its hidden name; `recover` deletes the rest after a kill."""
        hidden = self.root / f"{TEMPORARY}remove-{folder.name}"
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(folder, hidden)
        return hidden

    # ---------------------------------------------------------------------------------------- whose
    def is_own(self, folder: Path) -> bool:
        """Return whether a checkpoint is this run's, also if it cannot be read."""
        try:
            run = Manifest.read(folder).run
        except (CorruptCheckpoint, UnsupportedCheckpoint, OSError):
            return True
        return not self.names or run is None or run in self.names

    def _lead_here(self) -> None:
        """Make the link in the run's folder."""
        link = self.link_path
        if link is None or os.path.realpath(link) == os.path.realpath(self.root):
            return
        if checkpoint_steps(link, broken=True):
            raise ConfigError(
                "hooks.checkpointing.path: the checkpoints of this run are in"
                f" {os.path.realpath(link)}, and not in {self.root}: move them there, or leave out"
                " the key."
            )
        if link.is_symlink():
            link.unlink()
        elif link.exists():
            link.rmdir()
        link.parent.mkdir(parents=True, exist_ok=True)
        is_within = self.root.parent == link.parent
        link.symlink_to(self.root.name if is_within else os.path.abspath(self.root))
        fsync_folder(link.parent)

    # ---------------------------------------------------------------------------------------- links
    def link(self, name: str, target: str) -> None:
        """Point `latest` or `best` at a checkpoint, atomically."""
        temporary = self.root / f"{TEMPORARY}{name}"
        temporary.unlink(missing_ok=True)
        # A link cannot be changed in place; the rename leaves no moment without one.
        os.symlink(target, temporary)
        os.replace(temporary, self.root / name)
        fsync_folder(self.root)

    def mark_best(self, step: int) -> None:
        self.link(BEST, step_name(step))

    def resolve_link(self, name: str) -> int | None:
        """Return the step that `latest` or `best`, or a copy in its place, names."""
        link = self.root / name
        try:
            match = STEP.match(os.readlink(link).rstrip("/").rpartition("/")[2])
            step = int(match.group(1)) if match else None
        # The link is missing, or is a folder.
        except OSError:
            step = _step_of_copy(link)
        if step is not None and self.path(step).is_dir():
            return step
        return None

    def best(self) -> int | None:
        """Return the step that the link `best` or the newest checkpoints name."""
        step = self.resolve_link(BEST)
        if step is not None:
            return step
        steps = self.steps()
        bests = map(self._best_at, reversed(steps))
        return next((step for step in bests if step in steps), None)

    def _best_at(self, step: int) -> int | None:
        return (read_best(self.path(step)) or {}).get("step")

    def relink(self) -> None:
        """Rebuild links that are missing, wrong or, after `cp -rL`, folders."""
        newest = max(self.steps(), default=None)
        best = self.best()
        for name, step in ((LATEST, newest), (BEST, best)):
            link = self.root / name
            if link.is_dir() and not link.is_symlink():
                copied = _step_of_copy(link)
                if copied is None:
                    self._rename_aside(link, CORRUPT)
                elif self.path(copied).exists():
                    self._delete(link)
                else:
                    os.rename(link, self.path(copied))
                    # The copy may be the newest or the best one, so both links are chosen again.
                    return self.relink()
            if step is not None and self.resolve_link(name) != step:
                self.link(name, step_name(step))
            elif step is None:
                link.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------ discovery
    def recover(self) -> None:
        """Tidy up after a writer that died, and rename what it had not replaced."""
        if any(
            checkpoint_steps(folder, broken=True)
            for folder in (self.root, self.link_path)
            if folder is not None
        ):
            self._lead_here()
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
                if entry.is_symlink():
                    entry.unlink()
                else:
                    shutil.rmtree(entry, ignore_errors=True)
        self.relink()

    def _foreign_error(self, folder: Path) -> ConfigError:
        return ConfigError(
            f"{folder} is a checkpoint of the run {Manifest.read(folder).run}, not of"
            f" {next(iter(self.names))}: move it away, or start another run from it with"
            f" run.tag=<word> run.fork_from={folder}."
        )

    def newest_valid(
        self, hashes: bool | Callable[[FileEntry], bool] = True
    ) -> tuple[Path, Manifest] | None:
        """Return the newest checkpoint that verifies, or None without any.

        Newer ones that do not are set aside and reported. A checkpoint that was set aside earlier
        and verifies now gets its name back.

        Raises:
            CorruptCheckpoint: all are damaged. Starting from step 0 would lose the run silently.
            UnsupportedCheckpoint: another version of Launcher wrote the newest one. Nothing is
                renamed.
        """
        problems: list[str] = []
        for _, folder in self._candidates():
            is_aside = folder.name.startswith(CORRUPT)
            # A checkpoint that this process could not load was set aside by it.
            if folder.name in self._set_aside:
                problems.append(f"{folder.name} is damaged")
                continue
            try:
                if not self.is_own(folder):
                    if is_aside:
                        continue
                    raise self._foreign_error(folder)
                manifest = verify(folder, True if is_aside else hashes)
            except CorruptCheckpoint as error:
                problems.append(str(error))
                if not is_aside:
                    self.set_aside(folder, error)
                continue
            if is_aside:
                folder = self._take_back(folder, manifest)
            self.relink()
            return folder, manifest
        if problems:
            raise CorruptCheckpoint("; ".join(problems))
        return None

    def _candidates(self) -> list[tuple[int, Path]]:
        """List step and folder, newest first, also of damaged checkpoints."""
        folders = [(step, 1, self.path(step)) for step in self.steps_with_broken()]
        for folder in self.root.glob(f"{CORRUPT}step-*"):
            match = re.match(rf"{CORRUPT}step-(\d+)", folder.name)
            if match:
                folders.append((int(match.group(1)), 0, folder))
        return [(step, folder) for step, _, folder in sorted(folders, reverse=True)]

    def set_aside(self, folder: Path, error: CorruptCheckpoint) -> Path:
        """Rename a damaged checkpoint, which may be the only one, and report it."""
        target = self._rename_aside(folder, CORRUPT)
        self._set_aside.add(target.name)
        self.logger.error(
            "Checkpoint %s. It is renamed to %s, and an older one is used if there is one.",
            error,
            target.name,
        )
        return target

    def _take_back(self, folder: Path, manifest: Manifest) -> Path:
        final = self.path(manifest.step)
        os.rename(folder, final)
        fsync_folder(self.root)
        self.logger.warning(
            "%s had been set aside, and is valid now: renamed to %s.", folder.name, final.name
        )
        return final

    def abandon(self, after: int) -> list[str]:
        """Set aside checkpoints after the step of a rollback; return new names."""
        later = [folder for step, folder in self._candidates() if step > after]
        names = [self._rename_aside(folder, ABANDONED).name for folder in later]
        self.relink()
        return names

    def _rename_aside(self, folder: Path, prefix: str) -> Path:
        name = prefix + folder.name.removeprefix(CORRUPT).split(".")[0]
        target = first_unused(folder, lambda number: f"{name}{number}")
        os.rename(folder, target)
        fsync_folder(self.root)
        return target


def _step_of_copy(folder: Path) -> int | None:
    try:
        return Manifest.read(folder).step
    except (CorruptCheckpoint, UnsupportedCheckpoint, OSError):
        return None


def read_best(folder: Path) -> dict[str, Any] | None:
    """Return the best value that a checkpoint has stored, or None if it has none to read."""
    try:
        hooks = json.loads(read_file(folder / "rank-00000.json", follow=True))["hooks"]
        return dict(next(state[NOTES]["best"] for state in hooks.values() if NOTES in state))
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        StopIteration,
        RecursionError,
    ):
        return None
