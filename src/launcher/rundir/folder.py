"""The run folder and the names in it: an interface, since people and scripts use them."""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from launcher.errors import ConfigError
from launcher.process.files import expand
from launcher.process.users import explain_denial

FOLLOWER_LOCK = "tracker.lock"
FULL = errno.ENOSPC, errno.EDQUOT
"""Errors of a disk without room."""
STEP = re.compile(r"step-(\d{8,})$")
"""The name of a checkpoint's folder."""
PLACE = re.compile(r"hooks\.[^.]+\.path$")
"""The key of a place of checkpoints."""


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def checkpoint_steps(root: Path, broken: bool = False) -> list[int]:
    """List the steps of the checkpoints in a folder; `broken` includes those without a manifest."""
    folders = root.iterdir() if os.path.isdir(root) else ()
    matches = (
        STEP.match(folder.name)
        for folder in folders
        if folder.is_dir()
        and not folder.is_symlink()
        and (broken or (folder / "manifest.json").exists())
    )
    return sorted(int(match[1]) for match in matches if match)


def checkpoint_of(outputs: Path, name: str) -> Path | None:
    """Find the folder of a checkpoint that `<run id>/<step>` or a path names, or None."""
    run_id, _, step = name.rpartition("/")
    if step.isdecimal() and run_id and "/" not in run_id:
        place = Path(run_id, "checkpoints", f"step-{step.lstrip('0'):0>8}")
        matches = [parent / place for parent in outputs.glob("**") if os.path.isdir(parent / place)]
        return matches[0] if len(matches) == 1 else None
    folder = expand(name)
    if os.path.isfile(folder / "manifest.json"):
        return folder.resolve()
    return None


def weights_source(outputs: Path, name: str) -> Path | None:
    """Find the file or folder that `run.init_from` names: a path, else the id of one run."""
    # The function of pathlib raises for a name that is too long for the file system.
    if os.path.exists(path := expand(name)):
        return path
    parents = [] if "/" in name else outputs.glob("*")
    folders = [parent / name for parent in parents if os.path.exists(parent / name)]
    return folders[0] if len(folders) == 1 else None


def run_folders(folder: str) -> Iterator[str]:
    """Yield the folders with a run.json. Hidden and runs' own folders are not searched."""
    if os.path.lexists(f"{folder}/run.json"):
        yield folder
        return
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."
            ]
    except OSError:
        return
    for name in sorted(names):
        yield from run_folders(f"{folder}/{name}")


def find_folders(outputs: Path, word: str) -> list[Path]:
    """Find the folders of the runs with this id, `<name>/<id>`, name, or beginning of an id."""
    folders = [Path(folder) for folder in run_folders(str(outputs))]
    return (
        [folder for folder in folders if word in (folder.name, run_name(folder))]
        or [folder for folder in folders if folder.parent.name == word]
        or [folder for folder in folders if folder.name.startswith(word)]
    )


def place_of(workspace: Path | None, path: str | Path) -> Path:
    """Return the place of an option's files: the path, if it is in the run's folder.

    A place outside it is shared by runs, so there each run gets a folder `<name>/<id>` of its own.

    Args:
        workspace: the run's folder; None if the path is used as it is.
        path: relative to the run's folder.
    """
    path = expand(path)
    if workspace is None:
        return path
    root = Path(os.path.abspath(workspace))
    target = Path(os.path.normpath(root / path))
    if target.is_relative_to(root):
        return workspace / path
    return target / run_name(workspace)


def outside_places(folder: Path, settings: Mapping[str, Any]) -> list[Path]:
    """Return where a run's configuration, by dotted keys, puts checkpoints outside its folder."""
    # The run may have been moved; its links lead to the places of its old name.
    name = run_name(Path(settings.get("run.dir") or folder))
    workspace = Path(os.path.abspath(folder)).parent.parent / name
    paths = [value for key, value in settings.items() if PLACE.match(key)]
    places = [place_of(workspace, path) for path in paths if isinstance(path, str)]
    return [place for place in places if not place.is_relative_to(workspace)]


def leads_out(entry: Path, folder: Path) -> bool:
    """Return whether a path in a folder is a link to a place outside."""
    if not entry.is_symlink():
        return False
    target = os.path.realpath(entry)
    inside = os.path.realpath(folder)
    return not Path(target).is_relative_to(inside)


def is_copy(folder: Path, written_for: str | None) -> bool:
    """Return whether a file was copied here: the folder it was written for exists elsewhere."""
    try:
        return written_for is not None and not folder.samefile(written_for)
    # The folder was moved, or is not visible from this machine.
    except OSError:
        return False


def image_folders(images: Path) -> list[tuple[int, Path]]:
    """List the folders of a run's images, each with its step."""
    entries = [*images.iterdir()] if images.is_dir() else []
    return [(int(entry.name), entry) for entry in entries if entry.name.isdecimal()]


def run_name(workspace: Path) -> str:
    """`<name>/<id>` of a run, by its folder."""
    return "/".join(Path(os.path.abspath(workspace)).parts[-2:]).lstrip("/")


class RunFolder:
    """Paths of one run, `outputs/<run.name>/<run.id>/`.

    Creating this object touches nothing.

    ```
    .hydra/                        Hydra's record: config.yaml, overrides.yaml, hydra.yaml
    run.json                       state and attempts (see `launcher.rundir.record`)
    run.lock                       exists while a process works on it (see `launcher.rundir.lock`)
    metrics.jsonl                  one line for each logged step
    chain.jsonl                    the digests of each checkpoint (see `launcher.checkpoint.chain`)
    code.diff, environment.txt     its code and packages (see `launcher.rundir.reproduction`)
    code-1.diff                    the code of another repository
    media.jsonl, images/           logged images and histograms (see `launcher.hooks.media`)
    logs/                          launcher.log (rank 0), rank-<r>.log, output.log, slurm-<job>.log
    checkpoints/step-00000100/     latest -> step-00000100, best -> ...
    export/                        what job=export writes
    predictions/                   what job=predict writes, and predictions.jsonl about it
    ```
    """

    key: ClassVar[str] = "run.dir"
    """Name of the folder in messages."""
    another: ClassVar[str] = "start another run of the same configuration with run.tag=again"
    """The advice for a run that cannot be used."""
    elsewhere: ClassVar[str] = "use another folder for runs with paths.outputs=DIR"

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def hydra(self) -> Path:
        return self.path / ".hydra"

    @property
    def record_path(self) -> Path:
        return self.path / "run.json"

    @property
    def lock_path(self) -> Path:
        return self.path / "run.lock"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def chain_path(self) -> Path:
        return self.path / "chain.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        return self.path / "export"

    def newest_step(self) -> int:
        """Return the step of the newest checkpoint, 0 for none. Its bytes are not verified."""
        return max(checkpoint_steps(self.checkpoints), default=0)

    def log_path(self, rank: int = 0) -> Path:
        return self.logs / ("launcher.log" if rank == 0 else f"rank-{rank}.log")

    def has_foreign_checkpoints(self, settings: Mapping[str, Any]) -> bool:
        """Return whether `checkpoints` is a link to a place that a configuration does not name."""
        if not leads_out(self.checkpoints, self.path):
            return False
        places = map(os.path.realpath, outside_places(self.path, settings))
        return os.path.realpath(self.checkpoints) not in places

    def check_folders(self) -> None:
        """Check that no folder in it but `checkpoints` is a link out, before one is read."""
        for entry in self.path.iterdir():
            is_free = entry == self.checkpoints or not os.path.isdir(entry)
            if not is_free and leads_out(entry, self.path):
                raise self._link_error(entry, "where nothing is read")

    def check_links(self) -> None:
        """Check that no link but `checkpoints`, which may be elsewhere, leads out of the folder.

        Nothing in it may be a pipe or a device.

        The W&B library links its own log to the user's cache.
        """
        if Path(os.path.realpath(self.path)) in Path(os.path.realpath(os.curdir)).parents:
            raise ConfigError(
                f"{self.key}='{self.path}': the current folder is in it; use a folder for this run"
                " alone."
            )
        for parent, folders, files in os.walk(self.path):
            if Path(parent) == self.path:
                folders[:] = [name for name in folders if name != self.checkpoints.name]
            elif Path(parent) == self.path / "wandb":
                folders[:] = []
            for entry in (Path(parent, name) for name in (*folders, *files)):
                try:
                    mode = os.lstat(entry).st_mode
                # A live run removes its temporary files, and is reported later.
                except FileNotFoundError:
                    continue
                if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise ConfigError(
                        f"{self.key}='{self.path}': {entry.relative_to(self.path)} is a pipe or a"
                        " device, which nothing reads or writes; remove it."
                    )
                if leads_out(entry, self.path):
                    raise self._link_error(entry, "where nothing is written")

    def _link_error(self, entry: Path, why: str) -> ConfigError:
        return ConfigError(
            f"{self.key}='{self.path}': {entry.relative_to(self.path)} is a link to"
            f" {os.path.realpath(entry)}, outside the run's folder, {why}; remove the link."
        )

    @contextmanager
    def explain_write_errors(self) -> Iterator[None]:
        """Turn errors of writing within the context into a ConfigError."""
        try:
            yield
        except OSError as error:
            cause, remedy = explain_denial(error, self.path)
            fix = "make room on its disk, or " if error.errno in FULL else ""
            raise ConfigError(
                f"{self.key}='{self.path}': cannot be written ({cause});"
                f" {fix}{self.elsewhere}{remedy}."
            ) from error

    @contextmanager
    def being_read(self) -> Iterator[None]:
        """Turn errors of reading within the context into a ConfigError."""
        try:
            yield
        except OSError as error:
            name = error.filename or self.path
            (cause, remedy) = explain_denial(error, self.path)
            raise ConfigError(
                f"{self.key}='{self.path}': {name} cannot be read ({cause}); move it away, or"
                f" {self.another}{remedy}."
            ) from error

    def create(self) -> "RunFolder":
        """Create the folder and its `logs`; the others are created when first written to."""
        self.logs.mkdir(parents=True, exist_ok=True)
        return self


class Workspace(RunFolder):
    """The workspace of a Python program's trainer, which has no configuration to change."""

    key = "workspace"
    another = "use another workspace"
    elsewhere = "use another workspace"
