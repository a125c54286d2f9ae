"""Whether a run is complete (or paused) and has nothing left to do. Imports no torch."""

import logging
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from launcher.checkpoint.changes import changes_since, stored_sources
from launcher.checkpoint.find import checkpoint_path, find_checkpoint, request_name
from launcher.checkpoint.store import CheckpointStore
from launcher.config import plain_yaml
from launcher.config.identity import run_id
from launcher.config.tree import get
from launcher.errors import ConfigError
from launcher.run.folder import RunFolder
from launcher.run.holder import held_here, refusal
from launcher.run.logs import setup_logging
from launcher.run.provenance import VERSIONED, code_state
from launcher.run.record import RunRecord
from launcher.run.sources import imported_sources, source_changes

logger = logging.getLogger("launcher")

NEWEST = ("auto", "latest", "must")
"""Values of `run.resume` that mean the newest checkpoint."""


def nothing_to_do(config: Mapping[str, Any]) -> bool:
    """Whether the run is complete or paused, and the command asks for nothing more; then this is logged.

    Args:
        config: resolved, as plain containers: a repeated sweep asks for thousands of runs.
    Raises:
        ConfigError: another process of this machine is working on it. This saves building a trainer; the lock decides.
    """
    folder = RunFolder(config["run"]["dir"])
    with folder.being_read():
        record, held = RunRecord(folder) if folder.record_path.exists() else None, held_here(folder)
    if record is not None and record.state == "completed" and not asks_for_more(config, folder, record):
        setup_logging(None)
        logger.info("%s is complete already (step %d): nothing to do.", folder.path, record.step)
        for sentence in changes(config, folder):
            logger.warning("Changed since it was trained: %s", sentence)
        logger.info("To train it again as another run, use run.tag=<word>.")
        return True
    if record is not None and is_paused_there(config, folder, record):
        setup_logging(None)
        logger.info("%s is paused at step %d already: nothing to do.", folder.path, record.step)
        logger.info("A later trainer.pause_at, or none, resumes it.")
        return True
    if held is not None:
        raise ConfigError(refusal(folder, held))
    if record is not None and is_past(config, folder):
        setup_logging(None)
        step, max_steps = folder.newest_step(), config["trainer"]["max_steps"]
        logger.info("%s is at step %d, past trainer.max_steps=%d: nothing to do.", folder.path, step, max_steps)
        logger.info("To train on, use a later trainer.max_steps; run.resume=<step> rolls it back.")
        return True
    return False


def is_past(config: Mapping[str, Any], folder: RunFolder) -> bool:
    """Whether the newest checkpoint is later than the last step that the command asks for: an extension of the run was
    stopped, and the command is an earlier one."""
    return str(config["run"]["resume"]) in NEWEST and folder.newest_step() > config["trainer"]["max_steps"]


def is_paused_there(config: Mapping[str, Any], folder: RunFolder, record: RunRecord) -> bool:
    """Whether a run is paused, and the command asks for no later step."""
    pause_at = config["trainer"].get("pause_at")
    if record.state != "paused" or pause_at is None or str(config["run"]["resume"]) not in NEWEST:
        return False
    return bool(pause_at <= folder.newest_step() == record.step)


def asks_for_more(config: Mapping[str, Any], folder: RunFolder, record: RunRecord) -> bool:
    """Whether the command asks a completed run for more steps, or for a rollback that it has not made yet; or asks a
    run that stopped early for another configuration, under which it may train on."""
    max_steps = config["trainer"]["max_steps"]
    if max_steps > max(record.step, record.data["max_steps"] or 0):
        return True
    if record.step < max_steps and is_changed(config, folder):
        return True
    resume = str(config["run"]["resume"])
    if resume in NEWEST:
        return False
    newest = checkpoint_path(folder.checkpoints, "latest")
    if resume == "never" or newest is None:
        return True
    branch = CheckpointStore(folder.checkpoints).rollbacks()[-1:]
    return request_name(folder.checkpoints, resume) not in (newest.name, *branch)


def is_changed(config: Mapping[str, Any], folder: RunFolder) -> bool:
    """Whether the newest attempt had another configuration, apart from what cannot change the numbers."""
    file = folder.hydra / "config.yaml"
    if not file.exists():
        return False
    try:
        before, now = OmegaConf.load(file), OmegaConf.create(dict(config))
    except (OSError, ValueError, YAMLError, RecursionError):
        return False
    if not isinstance(before, DictConfig):
        return False
    return run_id(before) != run_id(now)


@cache
def _code() -> dict[str, Any]:
    """The state of the code. Cached: a repeated sweep needs it for each of its runs."""
    return code_state(also=VERSIONED)


def changes(config: Mapping[str, Any], folder: RunFolder) -> list[str]:
    """Sentences for changes of configuration and code since a run was completed, if they can change its numbers."""
    newest = checkpoint_path(folder.checkpoints, "latest")
    if newest is None:
        return []
    ignored = tuple(f"{key}{end}" for key in ("run", *config["run"]["not_identity"]) for end in (".", "=", ":"))
    sentences = changes_since(newest, dict(config), _code())
    gone = [text for text in sentences if text.endswith("is gone.")]
    unused = [text for text in sentences if text.startswith("versions.") and text.endswith("is new.")]
    kept = [text for text in sentences if not text.startswith(ignored) and text not in (*gone, *unused)]
    stored = stored_sources(newest)
    imported = {name: digest for name, digest in imported_sources().items() if name in stored}
    return kept + source_changes(stored, imported)


def why_done(config: Mapping[str, Any]) -> str | None:
    """See `TrainJob.why_done`."""
    folder = RunFolder(config["run"]["dir"])
    if folder.record_path.exists():
        record = RunRecord(folder)
        if record.state == "completed" and not asks_for_more(_with_known_steps(config, folder), folder, record):
            return "completed"
        if is_paused_there(config, folder, record):
            return f"paused at step {record.step}"
        if record.state != "completed" and is_past(config, folder):
            return f"at step {folder.newest_step()}, past trainer.max_steps={config['trainer']['max_steps']}"
    return None


def _with_known_steps(config: Mapping[str, Any], folder: RunFolder) -> Mapping[str, Any]:
    """The configuration of a completed run; if it counts epochs, `trainer.max_steps` is unlimited if they are more than
    before, and 0 otherwise. How many steps the epochs have depends on the data, which are not read here."""
    epochs = config["trainer"].get("max_epochs")
    if epochs is None:
        return config
    newest = checkpoint_path(folder.checkpoints, "latest")
    try:
        saved = {} if newest is None else plain_yaml.load((newest / "config.yaml").read_bytes())
    except (OSError, UnicodeDecodeError, YAMLError):
        saved = {}
    before = get(saved, "trainer.max_epochs")
    steps = math.inf if before is None or epochs > before else 0
    return {**config, "trainer": {**config["trainer"], "max_steps": steps}}


def check_resume(config: Mapping[str, Any]) -> None:
    """See `TrainJob.check_resume`."""
    checkpoints, resume = RunFolder(config["run"]["dir"]).checkpoints, str(config["run"]["resume"])
    store = CheckpointStore(checkpoints)
    if resume == "never" and store.steps():
        raise ConfigError(
            f"run.resume=never: {checkpoints} has checkpoints up to step {store.steps()[-1]}; use run.tag=<word> for "
            "another run of the same configuration, or run.resume=auto to resume this one."
        )
    if resume == "must" and not store.steps():
        raise ConfigError(f"run.resume=must: {checkpoints} has no checkpoint; use run.resume=auto.")
    if resume not in (*NEWEST, "never") and request_name(checkpoints, resume) not in store.rollbacks()[-1:]:
        find_checkpoint(checkpoints, resume, "run.resume", hashes=False)
