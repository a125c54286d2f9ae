"""A remote copy of checkpoints, through fsspec, for machines that may lose their disk."""

import hashlib
import logging
import shutil
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import Any

from launcher.checkpoint.durable_files import FileEntry
from launcher.checkpoint.manifest import NAME, CorruptCheckpoint, Manifest, verify
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.store import ABANDONED, BEST, CORRUPT, CheckpointStore
from launcher.errors import ConfigError
from launcher.process.files import fsync_file
from launcher.rundir.folder import STEP, run_name, step_name

CHUNK = 8 << 20
BUCKETS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci"}
"""Schemes of object stores, without folders; creating one could create a misspelt bucket."""


def open_remote(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"hooks.checkpointing.remote={url}: {str(error).rstrip('.')}.") from error
    return fs, path


class RemoteStore(CheckpointStore):
    """A folder of checkpoints, each of which is copied to `<url>/` when it is committed.

    An object store has no rename. So each save gets its own folder name there, and its manifest is
    written last, since a folder without a manifest is not a checkpoint. A killed upload leaves
    existing checkpoints unchanged, including a checkpoint of the same step.
    """

    def __init__(
        self,
        root: Path,
        url: str,
        logger: logging.Logger | None = None,
        link: Path | None = None,
        names: Collection[str] = (),
    ):
        super().__init__(root, logger, link, names)
        self.fs, self.base = open_remote(url)
        self.url = url
        protocols = (
            {self.fs.protocol} if isinstance(self.fs.protocol, str) else set(self.fs.protocol)
        )
        self.in_bucket = bool(protocols & BUCKETS)

    # --------------------------------------------------------------------------------------- upload
    def commit(
        self, folder: Path, manifest: Manifest, check: Callable[[], None] = lambda: None
    ) -> Path:
        """Commit as any store does, then copy, with `check` after each chunk.

        If the copy fails, the local checkpoint is valid.
        """
        final = super().commit(folder, manifest, check)
        self._copy(final, manifest, check)
        return final

    def _copy(
        self, final: Path, manifest: Manifest, check: Callable[[], None] = lambda: None
    ) -> None:
        remote = f"{self.base}/{final.name}-{_digest(final)}"
        if not self.fs.exists(f"{remote}/{NAME}"):
            for name in [*(entry.name for entry in manifest.files), NAME]:
                self._put(final / name, f"{remote}/{name}", check)
        for step, old in self._list_folders():
            if step == manifest.step and old != PurePosixPath(remote).name:
                self._remove(old)

    def _put(self, file: Path, target: str, check: Callable[[], None]) -> None:
        if not self.in_bucket:
            self.fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        with open(file, "rb") as source, self.fs.open(target, "wb") as copy:
            while chunk := source.read(CHUNK):
                copy.write(chunk)
                check()

    def tidy(self, step: int, retention: Retention, is_best: bool = False) -> None:
        super().tidy(step, retention, is_best)
        try:
            best = self._best()
            folders = self._list_folders()
            best_steps = () if best is None else (best,)
            old = retention.to_remove({at for at, _ in folders}, step, best_steps)
            for name in [name for at, name in folders if at in old]:
                if self._is_own(self._manifest(name)):
                    self._remove(name)
            # Interrupted uploads have left these.
            for _, name in self._list_folders(complete=False):
                self.fs.rm(f"{self.base}/{name}", recursive=True)
        except Exception as error:
            # Each file system has its own errors. The checkpoint is already copied.
            self.logger.error(
                "Step %d is saved to %s, but tidying up after it failed: %s", step, self.url, error
            )

    def mark_best(self, step: int) -> None:
        super().mark_best(step)
        try:
            self.fs.pipe_file(f"{self.base}/{BEST}", step_name(step).encode())
        except Exception as error:
            self.logger.error("%s/%s could not be written: %s", self.url, BEST, error)

    def _best(self) -> int | None:
        try:
            match = STEP.match(self.fs.cat_file(f"{self.base}/{BEST}").decode())
        except FileNotFoundError:
            return None
        return int(match.group(1)) if match else None

    def _remove(self, name: str) -> None:
        """Remove the manifest first: half a checkpoint then does not count as one."""
        self.fs.rm_file(f"{self.base}/{name}/{NAME}")
        self.fs.rm(f"{self.base}/{name}", recursive=True)

    def _rename(self, name: str, new: str) -> None:
        """Rename a remote folder, in object stores file by file: s3fs moves only objects."""
        source, target = f"{self.base}/{name}", f"{self.base}/{new}"
        # Its name contains the hash of its content, so it is the same.
        if self.fs.exists(target):
            self.fs.rm(target, recursive=True)
        if not self.in_bucket:
            self.fs.mv(source, target, recursive=True)
            return
        for file in self.fs.find(source):
            self.fs.cp_file(file, f"{target}/{file.rpartition(f'/{name}/')[2]}")
        self._remove(name)

    # ------------------------------------------------------------------------------------- download
    def remote_steps(self) -> list[int]:
        return sorted({step for step, _ in self._list_folders()})

    def _manifest(self, name: str) -> Manifest:
        return Manifest.parse(Path(name), self.fs.cat_file(f"{self.base}/{name}/{NAME}"))

    def _list_folders(self, complete: bool = True) -> list[tuple[int, str]]:
        """List step and name of each remote folder with (or without) a manifest."""
        # fsspec caches listings, and another machine may have written here since.
        self.fs.invalidate_cache()
        try:
            names = [PurePosixPath(path).name for path in self.fs.ls(self.base, detail=False)]
        except FileNotFoundError:
            bucket = self.base.strip("/").partition("/")[0]
            if self.in_bucket and not self.fs.exists(bucket):
                raise ConfigError(
                    f"hooks.checkpointing.remote={self.url}: no bucket {bucket}; create it first."
                ) from None
            return []
        matches = ((STEP.match(name.rpartition("-")[0]), name) for name in names)
        folders = sorted((int(match.group(1)), name) for match, name in matches if match)
        return [
            entry
            for entry in folders
            if self.fs.exists(f"{self.base}/{entry[1]}/{NAME}") == complete
        ]

    def newest_valid(
        self, hashes: bool | Callable[[FileEntry], bool] = True
    ) -> tuple[Path, Manifest] | None:
        """Return the newest valid checkpoint, after it was fetched if it is remote.

        A remote one that was saved before a rollback of this machine's run is set aside there.
        """
        newest, problem = None, None
        try:
            newest = super().newest_valid(hashes)
        except CorruptCheckpoint as error:
            problem = error
        try:
            for step, name in reversed(self._list_folders()):
                if newest is not None and step <= newest[1].step:
                    break
                if self._is_abandoned(name):
                    self._abandon_copy(name)
                    continue
                try:
                    self._check_own(self._manifest(name), f"{self.url}/{name}")
                    return self._fetch(name, step)
                except CorruptCheckpoint as error:
                    problem = error
                    self._rename(name, f"{CORRUPT}{name}")
                    self.logger.error(
                        "In %s, %s; set aside as %s%s.", self.url, error, CORRUPT, name
                    )
            if newest is not None and newest[1].step not in self.remote_steps():
                # The copy failed when it was saved.
                self._copy(*newest)
        except ConfigError:
            raise
        except Exception as error:  # each file system has its own errors
            raise self._unreachable(error) from error
        if newest is None and problem is not None:
            raise problem
        return newest

    def _abandon_copy(self, name: str) -> None:
        aside = f"{ABANDONED}{name}"
        self._rename(name, aside)
        self.logger.warning(
            "%s has %s from before the run was rolled back: set aside as %s.", self.url, name, aside
        )

    def _is_abandoned(self, name: str) -> bool:
        """Return whether this machine has set the checkpoint aside, by a rollback.

        The remote copy may have been out of use then.
        """
        return name.rpartition("-")[2] in {
            _digest(folder)
            for folder in self.root.glob(f"{ABANDONED}step-*")
            if (folder / NAME).is_file()
        }

    def abandon(self, after: int) -> list[str]:
        """Set checkpoints aside in the remote copy too, or they would be fetched again."""
        self.abandon_copies(after)
        return super().abandon(after)

    def abandon_copies(self, after: int) -> None:
        try:
            for step, name in reversed(self._list_folders()):
                if step > after:
                    self._rename(name, f"{ABANDONED}{name}")
        except Exception as error:  # each file system has its own errors
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"hooks.checkpointing.remote={self.url}: cannot be reached ({type(error).__name__}:"
            f" {error}); fix the connection, or resume from this machine's checkpoints with"
            " hooks.checkpointing.remote=null."
        )

    def _fetch(self, name: str, step: int) -> tuple[Path, Manifest]:
        """Download a checkpoint, and give it its name once it is verified."""
        folder = self.begin(step)
        remote = f"{self.base}/{name}"
        try:
            self.fs.get_file(f"{remote}/{NAME}", str(folder / NAME))
            for entry in Manifest.read(folder).files:
                (folder / entry.name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    self.fs.get_file(f"{remote}/{entry.name}", str(folder / entry.name))
                except FileNotFoundError:
                    raise CorruptCheckpoint(name, f"{entry.name} is missing") from None
                fsync_file(folder / entry.name)
            manifest = verify(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        final = super().commit(folder, manifest)
        self.link("latest", final.name)
        self.logger.info("Fetched %s from %s.", final.name, self.url)
        return final, manifest


def _digest(folder: Path) -> str:
    """Return the part of a remote name that distinguishes checkpoints of one step."""
    return hashlib.sha256((folder / NAME).read_bytes()).hexdigest()[:8]


def run_url(url: str, workspace: Path) -> str:
    """Return the URL for one run's checkpoints, below the URL that all runs share."""
    return f"{url.rstrip('/')}/{run_name(workspace)}"
