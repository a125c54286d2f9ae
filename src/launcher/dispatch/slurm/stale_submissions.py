"""Removes the folders of submissions that are no longer needed."""

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from launcher.rundir.folder import RunFolder
from launcher.rundir.holder import is_held
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.runs.trials import STUDIES
from launcher.slurm.submission import FROZEN


def remove_leftovers(outputs: Path, scripts: Collection[str]) -> None:
    """Remove the folders in `<outputs>/.slurm/` whose runs are complete, resubmitted or gone.

    The caller holds the lock of submissions, and `scripts` are of the jobs in SLURM's queue. A
    folder that cannot be read stays. All stay while a search runs here, since its next trial uses
    the snapshot of its first trials.
    """
    folders = [
        path for path in (outputs / ".slurm").glob("*") if path.is_dir() and not path.is_symlink()
    ]
    if not folders or any(is_held(RunFolder(study)) for study in (outputs / STUDIES).glob("*")):
        return
    with suppress(OSError, ValueError, LookupError, TypeError):
        used = {path for folder in folders for path in find_used_files(folder)} | {
            Path(script) for script in scripts
        }
        needed = {part for path in used for part in (path, *path.parents)}
        for folder in folders:
            if folder not in needed:
                shutil.rmtree(folder, ignore_errors=True)


def find_used_files(folder: Path) -> list[Path]:
    """Return the script here and the snapshot of the first run that is not complete.

    All runs of a submission have the same snapshot.
    """
    for run in runs_of(folder):
        try:
            saved = json.loads((run / FROZEN).read_bytes())
        except FileNotFoundError:
            continue
        if not (run / "run.json").exists():
            continue
        is_complete = RunOnDisk.read(run).record.get("state") == "completed"
        if not is_complete and Path(saved["job"]["script"]).parent == folder:
            return [Path(path) for path in (saved["job"]["script"], saved["snapshot"]) if path]
    return []


def runs_of(folder: Path) -> Iterator[Path]:
    for path in folder.glob("runs-*.txt"):
        yield from map(Path, path.read_text().splitlines())
