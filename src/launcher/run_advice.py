"""Messages about a run that has nothing left to do: what has changed since, what may be added."""

import logging
import re
import shlex
from collections.abc import Iterator, Mapping

from launcher.checkpoint.drift import changes_since, read_sources
from launcher.checkpoint.find_checkpoint import checkpoint_path
from launcher.config.run_config import RunConfig
from launcher.config.schema.source import cached_by_command
from launcher.errors import ConfigError
from launcher.remaining import Done, Held, counts_epochs, remaining
from launcher.rundir.folder import RunFolder
from launcher.rundir.imported_sources import digest_imported_sources
from launcher.rundir.lock_holder import rejection
from launcher.rundir.logs import setup_logging
from launcher.rundir.provenance import VERSIONED, code_state
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.trackers.base import is_tracker

logger = logging.getLogger("launcher")

ADDABLE_KEY = re.compile(r"tracker\.\w+|hooks\.\w+\.metrics\.\w+")
"""Keys of parts that a completed run can get without training."""


def is_done(config: RunConfig) -> bool:
    """Return whether nothing is left to train, which is then logged.

    Raises:
        ConfigError: see `remaining`; or another process of this machine is on the run.
    """
    folder = config.folder
    rest = remaining(config, folder)
    if isinstance(rest, Held) and rest.is_here:
        raise ConfigError(rejection(folder, rest.holder))
    if not isinstance(rest, Done):
        return False
    setup_logging(None)
    words = {"completed": f"complete already (step {rest.step})", "paused": f"{rest} already"}
    logger.info("%s is %s: nothing to do.", folder.path, words.get(rest.reason, rest))
    stored = RunOnDisk.read(folder)
    # The steps of `trainer.max_epochs` follow from the data, which have not changed.
    full = config.with_steps(stored.max_steps) if counts_epochs(config) else config
    for message in [*changes(full, folder), *rest.changed_files]:
        logger.warning("Changed since it was trained: %s", message)
    for message in _advice(config, stored, rest):
        logger.info("%s", message)
    return True


def _advice(config: RunConfig, stored: RunOnDisk, done: Done) -> Iterator[str]:
    if done.reason == "completed":
        yield from additions(config, stored)
        yield "To train it again as another run, use run.tag=<word>."
    elif done.reason == "paused":
        yield "A later trainer.pause_at, or none, resumes it."
    else:
        yield (
            "To train on, use a later trainer.max_steps; python -m launcher.runs rollback"
            f" {stored.id} STEP rolls it back."
        )


# -------------------------------------------------------------------------------------- differences
@cached_by_command
def _code() -> dict[str, object]:
    """Return the state of the code, which a repeated sweep needs for each of its runs."""
    return code_state(also=VERSIONED)


def changes(config: RunConfig, folder: RunFolder) -> list[str]:
    """List changes that may change the numbers, since the newest checkpoint of a run."""
    newest = checkpoint_path(folder.checkpoints, "latest")
    if newest is None:
        return []
    stored = read_sources(newest)
    imported = {
        name: digest for name, digest in digest_imported_sources().items() if name in stored
    }
    return changes_since(newest, config.of_the_run, _code(), imported)


# ---------------------------------------------------------------------------------------- additions
def additions(config: RunConfig, stored: RunOnDisk) -> Iterator[str]:
    """Explain how to add trackers and metrics that the completed run did not have."""
    now = _parts_of(config.record["config"])
    new = sorted(now - _parts_of(stored.settings))
    metrics = [key for key in new if key.startswith("hooks.")]
    trackers = [key.removeprefix("tracker.") for key in new if key not in metrics]
    if metrics:
        yield (
            f"{', '.join(metrics)}: job=evaluate, added to this command, computes it for the last"
            " checkpoint."
        )
    trackers = [name for name in trackers if is_tracker(config.stored["tracker"][name])]
    if trackers:
        settings = [word for word in config.overrides if word.lstrip("+").startswith("tracker.")]
        outputs = config.outputs
        outputs_option = [] if outputs == "outputs" else ["--outputs", outputs]
        # A tracker that a `+` has added is not an option of the group.
        added = {word[1:].partition("=")[0] for word in settings if word.startswith("+")}
        options = ",".join(name for name in trackers if f"tracker.{name}" not in added)
        chosen = [f"tracker=[{options}]"] if options else []
        command = [stored.id, *chosen, *settings, *outputs_option]
        yield f"To copy the run to it: python -m launcher.runs sync {shlex.join(command)}"


def _parts_of(settings: Mapping[str, object]) -> set[str]:
    return {match[0] for key in settings if (match := ADDABLE_KEY.match(key))}
