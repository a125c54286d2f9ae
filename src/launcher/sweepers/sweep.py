"""`hydra/sweeper=optuna`: from Hydra's arguments to a study that is searched."""

import hashlib
import json
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig

from launcher.cli.composer import Composer
from launcher.cli.main import note_start
from launcher.cli.sweep import SweepJob, check_jobs
from launcher.config.resolve import plain_hydra
from launcher.config.schema import validate
from launcher.errors import ConfigError
from launcher.run.folder import RunFolder
from launcher.run.holder import held_here
from launcher.run.lock import RunLock
from launcher.sweepers.local import LocalRunner
from launcher.sweepers.results import conclude
from launcher.sweepers.rungs import rungs_of
from launcher.sweepers.samplers import make_sampler
from launcher.sweepers.search import Search, remove_empty
from launcher.sweepers.settings import Settings, settings_of
from launcher.sweepers.space import Space, as_json, is_setting, overrides_of, point, read_space

STUDIES = "studies"
SHARES = 0.0, 1.0, 0.5
"""Places in the space where a valid configuration is looked for."""
LOCAL = "launcher.dispatch.local.LocalDispatch"


def sweep(loader: ConfigLoader, master: DictConfig, arguments: list[str]) -> None:
    """Search until the study has all its trials.

    Raises:
        ConfigError: the search cannot begin; nothing was written.
        signals.Stop: a signal came; the trials have saved.
        SystemExit: no trial has completed.
    """
    ranges = dict(master.hpo.space or {}) if master.get("hpo") else {}
    space, fixed = read_space(loader, arguments, ranges)
    fixed_settings = [text for text in arguments if is_setting(text)]
    probe = probed(loader, master, [*fixed, *fixed_settings], space)
    if (dispatch := probe.plain["dispatch"]["_target_"]) != LOCAL:
        raise ConfigError(f"hydra/sweeper=optuna: {dispatch.rpartition('.')[2]} is not supported; use dispatch=local.")
    settings = settings_of(probe.plain)
    rungs = rungs_of(settings, probe.plain)
    make_sampler(settings, space, 0)
    name = f"{settings.name or probe.plain['run']['name']}-{study_id(probe, space, settings)}"
    outputs = Path(probe.plain["paths"]["outputs"]).expanduser()
    folder = outputs / STUDIES / name
    composer = Composer(loader, master)
    composer.sweep = name

    def compose(overrides: list[str], number: int) -> SweepJob:
        job = SweepJob(number, overrides, composer)
        config = job.config
        job.hydra = plain_hydra(config.hydra)
        job.plain = validate(config)
        return job

    search = Search(folder, outputs, settings, space, fixed, compose, LocalRunner(folder, settings.parallel), rungs)
    with locked(folder):
        note_start()
        search.load()
        known = f", {len(search.trials)} trials so far" if search.trials else ""
        print(f"Study {folder}{known}{f', rungs at steps {rungs}' if rungs else ''}", flush=True)
        search.run()
        conclude(search, loader)


def probed(loader: ConfigLoader, master: DictConfig, fixed: list[str], space: Space) -> SweepJob:
    """A job with some value of each range. It shows what all trials have in common.

    Raises:
        ConfigError: none of several jobs is valid.
        hydra.errors.HydraException: there is no such key.
    """
    faults: list[ConfigError] = []
    for share in SHARES:
        try:
            (job,) = check_jobs(loader, master, [[*fixed, *overrides_of(point(space, share))]])
            return job
        except ConfigError as error:
            faults.append(error)
    raise faults[-1]


def study_id(probe: SweepJob, space: Space, settings: Settings) -> str:
    """8 hex digits: a hash of what all trials share, of the space and of the objective."""
    what = [probe.plain["run"]["id"], as_json(space), settings.objectives, settings.directions]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]


class locked:
    """One search at a time works on a study."""

    def __init__(self, folder: Path):
        self.folder, self.lock = folder, RunLock(RunFolder(folder))

    def __enter__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if held := held_here(RunFolder(self.folder)):
            raise ConfigError(f"The study {self.folder} is being searched by {held}; wait for it, or stop it.")
        try:
            self.lock.acquire()
        except ConfigError as error:
            if error.__cause__ is not None:  # the folder cannot be written
                raise
            raise ConfigError(
                f"The study {self.folder} is being searched elsewhere; wait for it, or stop it."
            ) from error

    def __exit__(self, *exc: Any) -> None:
        self.lock.release()
        for empty in (self.folder, self.folder.parent, self.folder.parent.parent):
            remove_empty(empty)
