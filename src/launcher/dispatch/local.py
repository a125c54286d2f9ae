"""dispatch=local, which runs on this machine, now."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from launcher.config.run_config import RunConfig
from launcher.config.schema.declared import declared
from launcher.config.tree import pick
from launcher.dispatch import forced_exit
from launcher.dispatch.child_command import ENTRY
from launcher.dispatch.environment import check_ranks, join_ranks
from launcher.dispatch.node_process import imports_for
from launcher.dispatch.run_job import execute_job
from launcher.dispatch.spawner import JOB, Rank, Spawner
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.process.byte_sizes import size
from launcher.process.child import describe_end, last_lines
from launcher.process.gpus import count_gpus
from launcher.run_advice import is_done
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import is_held
from launcher.rundir.logs import announce_imports
from launcher.rundir.record import RunRecord
from launcher.types import PositiveInt, Seconds

LAST_LINES = 30
ROOM = 1_000_000
"""Bytes that a temporary folder must have for the configurations, reports and output."""
CLASSES = ("job._target_", "strategy._target_", "model._target_")


class LocalDispatch:
    """Several ranks are processes that end with this command.

    Under torchrun or srun, this process is one of their ranks.

    Args:
        nproc: ranks on this machine. With auto, one for each GPU, or one on a CPU.
        grace: after a signal, exit by force once neither a micro-batch nor the save has made
            progress for this many seconds. With null, never.
        parallel: runs of a sweep at a time, each as a process with its share of the GPUs. With
            auto, one for each GPU.
    """

    trials = "processes"

    def __init__(
        self,
        nproc: PositiveInt | Literal["auto"] = "auto",
        grace: Seconds | None = 120.0,
        parallel: PositiveInt | Literal["auto"] = 1,
    ):
        self.nproc = nproc
        self.grace = grace
        self.parallel = parallel

    def slots(self) -> int:
        """Return the number of runs of a sweep at a time."""
        slots = max(1, count_gpus()) if self.parallel == "auto" else self.parallel
        if slots > 1 and join_ranks():
            raise ConfigError(
                f"dispatch.parallel={self.parallel}: is not for one of several ranks; leave it out"
                " here."
            )
        return slots

    def run(self, config: RunConfig) -> object:
        """Run the job; return the value that it returns on rank 0.

        Raises:
            ConfigError: the job was rejected.
            signals.SignalExit: a signal ended it, and the state is durable.
            SystemExit: a rank failed. Its error is printed, and all ranks have ended.
        """
        if self.is_complete(config):
            return None
        is_rank = join_ranks()
        if is_rank:
            self._check_started()
        count = 1 if is_rank else self.count(config)
        if count > 1:
            return spawn(config, count)
        forced_exit.arm(config.plain["dispatch"])
        announce_imports()
        return execute_job(config)

    def is_complete(self, config: RunConfig) -> bool:
        """Return whether there is nothing to train, which is then logged.

        One of several ranks returns False, since the job decides.
        """
        started = join_ranks()
        check_ranks()
        return not started and config.trains and is_done(config)

    def _check_started(self) -> None:
        """Check that torchrun or srun has started as many ranks here as are requested."""
        started = os.environ.get("LOCAL_WORLD_SIZE")
        if started is None or self.nproc == "auto" or str(self.nproc) == started:
            return
        raise ConfigError(
            f"dispatch.nproc={self.nproc}: torchrun or srun has started other ranks here"
            f" (LOCAL_WORLD_SIZE={started}); start {self.nproc} with it (--nproc-per-node,"
            " --ntasks-per-node), or leave the key out."
        )

    def count(self, config: RunConfig) -> int:
        job, strategy, model = pick(config.plain, CLASSES)
        if declared(job, "starts_ranks"):
            return 1
        if self.nproc != "auto":
            return self.nproc
        if declared(strategy, "one_process") or declared(job, "one_process"):
            return 1
        if declared(model, "owns_optimizers"):
            return 1
        if config.device in ("auto", "cuda"):
            return max(1, count_gpus())
        return 1


def spawn(config: RunConfig, count: int) -> object:
    """Run the job as `count` ranks; see `LocalDispatch.run`."""
    signals.check()
    with private_folder() as folder:
        config.save(folder / JOB)
        announce_imports(f"Loading torch for {count} processes")
        spawner = Spawner(ENTRY, count, folder, imports_for(config.plain))
        ranks = spawner.run()
        cause = spawner.cause()
        if cause is not None:
            _fail(config.folder, cause, ranks, folder)
    stopped = next((rank for rank in ranks if rank.report.get("kind") == "stopped"), None)
    if stopped is not None:
        raise signals.SignalExit(stopped.report["signum"], stopped.report["code"])
    return ranks[0].report.get("value")


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a temporary folder for files between a command and its processes."""
    try:
        temporary = tempfile.TemporaryDirectory(prefix="launcher-")
    except OSError as error:
        raise ConfigError(
            f"TMPDIR={tempfile.gettempdir()}: cannot be written ({error.strerror}); set TMPDIR to"
            " another folder."
        ) from error
    with temporary as name:
        _check_room(name)
        yield Path(name)


def _check_room(folder: str) -> None:
    """Check that the files of the processes can be written, so that no run fails by them."""
    room = os.statvfs(folder)
    left = room.f_bavail * room.f_frsize
    # The size is 0 on file systems that do not say it.
    if room.f_blocks and left < ROOM:
        raise ConfigError(
            f"TMPDIR={tempfile.gettempdir()}: has only {size(left)} left; set TMPDIR to another"
            " folder, or remove files there."
        )


def _fail(run: RunFolder, cause: Rank, ranks: list[Rank], folder: Path) -> None:
    if cause.report.get("kind") == "rejected":
        raise ConfigError(*cause.report["messages"])
    code = cause.process.returncode or 0
    if cause.report:
        text = cause.report["text"]
        reason = cause.report["text"].strip().splitlines()[-1]
    else:
        lines = last_lines(folder / f"rank-{cause.number}.out", LAST_LINES)
        reason = (
            f"it {describe_end(code)} and reported no error; see also {run.log_path(cause.number)}"
        )
        text = "\n".join([*lines, reason]) + "\n"
    is_silent = not cause.report
    _close_record(run, ranks[0].process.pid, f"rank {cause.number}: {reason}", is_silent)
    print(
        f"Rank {cause.number} of {len(ranks)} failed:\n{text}", end="", file=sys.stderr, flush=True
    )
    if "hung_after" in cause.report:
        raise signals.SignalExit(cause.report["hung_after"], code)
    raise SystemExit(code if code > 0 else 1)


def _close_record(folder: RunFolder, pid: int, reason: str, is_silent: bool) -> None:
    """Record in run.json why the attempt of rank 0 (process `pid`) ended, if it could not know.

    Args:
        folder: the run's folder.
        pid: process id of rank 0.
        reason: how the rank failed that failed first.
        is_silent: that rank was killed, so the others have only lost their connection to it.
    """
    if not folder.record_path.exists():
        return
    record = RunRecord(folder)
    attempt = record.attempt
    if attempt.get("pid") != pid or is_held(folder):
        return
    outcome = attempt.get("outcome")
    if outcome is None:
        record.end_attempt("failed", end_step=record.step, exit_code=1, reason=reason[:500])
    elif outcome == "failed" and is_silent:
        record.revise(
            "failed",
            reason=reason,
            slurm_job_id=attempt.get("slurm_job_id"),
            num_earlier=len(record.attempts) - 1,
        )
