"""Segments of `runs replay` as SLURM jobs (`dispatch=slurm`)."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from launcher.config.construct import construct
from launcher.config.plain import to_plain
from launcher.config.resolve import stored
from launcher.config.schema import check_dispatch
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.rundir.copied import check_ended
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.slurm import scheduler
from launcher.slurm.submission import JobNote, freeze

PAUSE = 1.0
"""Seconds between two calls of squeue."""
GONE_LOOKS = 3
"""Number of consecutive calls that do not list a job until it counts as ended."""


def is_of_dispatch(word: str) -> bool:
    """Return whether an argument chooses where the segments train."""
    return word.partition("=")[0].partition(".")[0] == "dispatch" and "=" in word


def dispatch_of(overrides: Sequence[str]) -> dict[str, object] | None:
    """Return the settings of SLURM's dispatch from the command line, or None without any.

    Raises:
        ConfigError: an override is wrong, or is not one of SLURM's dispatch.
    """
    if not overrides:
        return None
    # Imported late, since Hydra's compose takes 0.1 s.
    from launcher.config.compose import compose

    dispatch: dict[str, Any] = to_plain(compose(overrides).dispatch)
    if "max_fruitless_restarts" not in dispatch:
        raise ConfigError(
            f"{overrides[0]}: replay trains on this machine, or as jobs with dispatch=slurm."
        )
    for key in ("wait", "dry_run"):
        if dispatch[key]:
            raise ConfigError(f"dispatch.{key}=true: replay does not use it; leave it out.")
    if (runs := dispatch["runs_per_job"]) > 1:
        raise ConfigError(f"dispatch.runs_per_job={runs}: replay does not use it; leave it out.")
    return dispatch


def for_ranks(dispatch: Mapping[str, object], ranks: int, label: str) -> dict[str, object]:
    """Return the settings for as many ranks as the run had.

    Args:
        dispatch: see `dispatch_of`.
        ranks: number of ranks of the run at that time.
        label: the run's name.
    Raises:
        ConfigError: they give another number.
    """
    settings = dict(dispatch)
    nodes = settings["nodes"]
    if (
        not (settings["tasks_per_node"] or settings["gpus_per_node"])
        and isinstance(nodes, int)
        and ranks % nodes == 0
    ):
        settings["tasks_per_node"] = ranks // nodes
    size = construct(settings).size
    if size.nodes.is_open or size.nodes.min * size.ranks_per_node != ranks:
        raise ConfigError(
            f"dispatch.nodes={nodes}: {label} had {ranks} ranks; use dispatch.nodes and"
            " dispatch.tasks_per_node whose product is that number."
        )
    return settings


def train(
    config: Any,
    hydra: Any,
    folder: RunFolder,
    dispatch: Mapping[str, Any],
    what: str,
    poll: Callable[[], object] | None,
) -> None:
    """Train a copy as a SLURM job, and wait for its end.

    If the waiting ends early, the job is cancelled.

    Args:
        config: configuration that `write_job` has written.
        hydra: Hydra's node that was recorded with it.
        folder: the copy's folder, which the nodes must see.
        dispatch: see `for_ranks`.
        what: description of the copy.
        poll: function that is called until the job has ended.
    Raises:
        ConfigError: it cannot be submitted, or has failed.
        signals.SignalExit: a signal ended the waiting.
    """
    plain = {**stored(config), "dispatch": dict(dispatch)}
    plain.pop("hydra", None)
    check_dispatch(plain)
    freeze(folder, plain, to_plain(hydra) if hydra else None, None)
    before = signals.install()
    try:
        # The results are on standard output.
        with redirect_stdout(sys.stderr):
            construct(dispatch).resubmit([folder], None, dispatch)
        note = JobNote.read(folder)
        if note is None or note.job_id is None:
            raise ConfigError(f"{what}: SLURM has no job of it.")
        try:
            wait_for(note, poll)
        except BaseException:
            scheduler.cancel([note.job_id])
            raise
    finally:
        signals.restore(before)
    record = RunRecord(folder)
    if record.state not in ("completed", "paused"):
        reason = record.attempts[-1].reason if record.attempts else None
        log = folder.logs / f"slurm-{note.job_id}.log"
        if not log.exists():
            raise ConfigError(f"{what}: SLURM job {note.job_id} {record.state}: {reason}.")
        check_ended(1, log, f"{what}, SLURM job {note.job_id}")


def wait_for(note: JobNote, poll: Callable[[], object] | None) -> None:
    """Wait until a job is no longer in SLURM's queue.

    Raises:
        signals.SignalExit: a signal ended the waiting.
    """
    missing = 0
    while missing < GONE_LOOKS:
        signals.check()
        if poll is not None:
            poll()
        queue = scheduler.queue()
        is_gone = queue is not None and note.find_in(queue) is None
        missing = missing + 1 if is_gone else 0
        if missing < GONE_LOOKS:
            time.sleep(PAUSE)
