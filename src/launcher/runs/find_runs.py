"""Find all runs on disk, or the run that a word names."""

import os
from pathlib import Path

from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.process.files import expand
from launcher.rundir.folder import run_folders
from launcher.runs.filters import check_word
from launcher.runs.format import join_names
from launcher.runs.stored_run import StoredRun

RUN_HELP = "an id, the beginning of an id, a name, name/id, a SLURM job, or a folder"


def find_runs(outputs: Path) -> list[StoredRun]:
    """Find all runs below a folder, in the order in which they started."""
    runs = map(StoredRun.read, run_folders(str(outputs)))
    return sorted(runs, key=lambda run: (run.started, run.path))


def find_run(word: str, outputs: Path) -> StoredRun:
    """Find the run that an id, the beginning of an id, a name, name/id, or a folder names.

    Raises:
        ConfigError: there is none, or a folder in it is a link to another place.
    """
    run = _find_run(word, outputs)
    with run.folder.being_read():
        run.folder.check_folders()
    return run


def _find_run(word: str, outputs: Path) -> StoredRun:
    check_word(word)
    folder = expand(word)
    if os.path.isfile(folder / "run.json"):
        return StoredRun.read(folder)
    runs = find_runs(outputs)
    matches = (
        [run for run in runs if word in (run.id, run.label)]
        or [run for run in runs if run.name == word]
        or [run for run in runs if run.id.startswith(word)]
        or [run for run in runs if word in (run.job_id, str(run.job_id).partition("_")[0])]
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        some = join_names([run.label for run in matches])
        raise ConfigError(
            f"'{word}': names {len(matches)} runs, {some}; write name/id, or more of the id."
        )
    if not runs:
        raise ConfigError(
            f"'{word}': there are no runs in {outputs}; give their folder with --outputs=DIR."
        )
    names = {name for run in runs for name in (run.name, run.id, run.label)}
    raise ConfigError(f"'{word}': is not a run in {outputs}{hint(word, names)}")
