"""Opens a run's folder, trains, and records in run.json how that ended."""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from launcher.config.explain import unwrapped
from launcher.config.resolve import resolved, resolved_yaml
from launcher.errors import config_error
from launcher.hooks.record import RecordHook
from launcher.jobs.complete import nothing_to_do
from launcher.jobs.summary import end_lines, start_lines, time_taken
from launcher.run import deadline, signals
from launcher.run.folder import RunFolder, checkpoint_steps
from launcher.run.lock import RunLock
from launcher.run.logs import setup_logging
from launcher.run.provenance import code_state, is_restart
from launcher.run.ranks import Ranks, broadcast, on_main, report_failure, reported_failure
from launcher.run.record import RunRecord
from launcher.run.record_format import Outcome
from launcher.trackers.base import build_trackers
from launcher.trackers.process import FollowerProcess
from launcher.train.build import build_trainer, logger
from launcher.train.composed import Trainer
from launcher.train.length import with_max_steps


def train(config: DictConfig) -> dict[str, Any] | None:
    """See `TrainJob.run`."""
    folder, ranks = RunFolder(config.run.dir), Ranks.from_env()
    setup_logging(None, ranks.rank)
    config = with_max_steps(config)
    if on_main(lambda: nothing_to_do(resolved(config))):
        return None
    code, plain = code_state(), resolved(config)
    follower = FollowerProcess(folder, on_main(lambda: usable_trackers(config)))
    lock = RunLock(folder, sleep=_sleep, on_lost=give_up) if ranks.is_main else None
    recorder = RecordHook(None, plain, code)
    try:
        trainer = build_trainer(config, folder, [recorder])
    except Exception as error:
        report_failure(error)
        if lock is not None and config_error(error) is None:
            record_failure(error, config, folder, lock, ranks)
        raise
    trainer.context.texts["code.yaml"] = OmegaConf.to_yaml(code)
    try:
        with opened(config, folder, lock) as record:
            setup_logging(folder.log_path(ranks.rank), ranks.rank)
            logger.info("Run %s", folder.path)
            for line in start_lines(config, trainer):
                logger.info(line)
            recorder.record = record
            with attempt(record, config, ranks, trainer):
                trainer.context.attempt = broadcast(record.attempt.number if record and record.attempt else 1)
                trainer.context.check_lock = lock.check if lock is not None else trainer.context.check_lock
                if ranks.is_main:
                    follower.start()
                trainer.train()
            how = "Paused at step %d" if trainer.is_paused else "Completed at step %d"
            report_end(record, config, how, trainer)
    except signals.Stop:
        trainer.strategy.teardown()
        raise
    except Exception:
        follower.wait()
        raise
    trainer.strategy.teardown()
    follower.wait()
    return trainer.state.metrics


def report_end(record: RunRecord | None, config: DictConfig, how: str, trainer: Trainer) -> None:
    """Log that training has ended, and on rank 0 its results."""
    logger.info(f"{how}%s.", trainer.step, "" if record is None else f" after {time_taken(record)}")
    for line in end_lines(record, config, sys.stdout) if record is not None else ():
        logger.info(line)


def usable_trackers(config: DictConfig) -> list[str]:
    """The names of the trackers that are updated while the run trains.

    Raises:
        ConfigError: a library or a key that a tracker needs is missing.
    """
    trackers = build_trackers(config.get("tracker"))
    for name, tracker in trackers.items():
        tracker.check(f"tracker.{name}")
    return [name for name, tracker in trackers.items() if not tracker.waits_for_sync]


def _sleep(seconds: float) -> None:
    """Sleep while waiting for another machine's lock, for up to half a minute in all; stop on a signal."""
    time.sleep(seconds)
    signals.check()


def give_up(reason: str) -> None:
    """Exit at once: another process has taken this run over, so nothing more may be written."""
    print(reason, file=sys.stderr, flush=True)
    for child in multiprocessing.active_children():  # data workers
        child.kill()
    os._exit(1)


def open_record(folder: RunFolder, lock: RunLock) -> RunRecord:
    return RunRecord(folder, check_lock=lock.check)


def record_failure(error: BaseException, config: DictConfig, folder: RunFolder, lock: RunLock, ranks: Ranks) -> None:
    """Record an attempt whose trainer could not be built."""
    with lock:
        with folder.being_written():
            folder.create()
            write_hydra_record(config, folder.hydra)
        record = open_record(folder, lock)
        begin_attempt(record, config, ranks, config.strategy._target_.rsplit(".", 1)[-1])
        AttemptEnd(record).fail(error, record.step)


@contextmanager
def opened(config: DictConfig, folder: RunFolder, lock: RunLock | None) -> Iterator[RunRecord | None]:
    """Rank 0 creates and locks the run's folder, and gets its record; other ranks get None. A new run that is refused
    leaves nothing behind."""

    def take() -> None:
        assert lock is not None
        lock.acquire()
        with folder.being_written():
            folder.create()
            write_hydra_record(config, folder.hydra)

    try:
        on_main(take)
        yield open_record(folder, lock) if lock is not None else None
    finally:
        if lock is not None:
            if lock.is_held() and not folder.record_path.exists():
                remove_leftovers(folder)
            lock.release()


def remove_leftovers(folder: RunFolder) -> None:
    """Remove what a refused start has created, and nothing else."""
    if checkpoint_steps(folder.checkpoints, broken=True):
        return
    shutil.rmtree(folder.hydra, ignore_errors=True)
    for log in (folder.log_path(0), *folder.logs.glob("rank-*.log")):
        log.unlink(missing_ok=True)
    for empty in (folder.logs, folder.checkpoints):
        try:
            empty.rmdir()
        except OSError:  # not empty, or not there
            continue


def begin_attempt(record: RunRecord, config: DictConfig, ranks: Ranks, strategy: str) -> None:
    with RunFolder(config.run.dir).being_written():
        record.begin_attempt(
            start_step=record.step, max_steps=config.trainer.max_steps, world_size=ranks.world_size, strategy=strategy
        )


class AttemptEnd:
    """The end of an attempt in run.json. The main thread and a forced exit may both come to write it: the first one
    does, and the other waits until it is written."""

    def __init__(self, record: RunRecord):
        self.record = record
        self._lock, self._is_written = threading.Lock(), False

    def write(self, outcome: Outcome, step: int, **details: Any) -> None:
        self._once(lambda: self.record.end_attempt(outcome, end_step=step, **details))

    def withdraw(self) -> None:
        """Undo the attempt: it was refused before it changed anything."""
        self._once(self.record.withdraw_attempt)

    def fail(self, error: BaseException, step: int) -> None:
        code = 1 if config_error(error) is None else 2
        error = unwrapped(error)
        # Another rank's error, if this one only follows from it.
        reason = reported_failure() or f"{type(error).__name__}: {error}"
        if code == 1:
            logger.error("Failed at step %d: %s", step, reason)
        self.write("failed", step, exit_code=code, reason=reason[:500])

    def _once(self, write: Callable[[], None]) -> None:
        with self._lock:
            if self._is_written:
                return
            self._is_written = True
            try:
                write()
            except OSError as error:  # must not hide why the attempt ended
                logger.error("%s could not be written: %s.", self.record.path, error.strerror)


@contextmanager
def attempt(record: RunRecord | None, config: DictConfig, ranks: Ranks, trainer: Trainer) -> Iterator[None]:
    """Record an attempt and its outcome in run.json. One that is refused before training begins is withdrawn."""
    if record is None:
        try:
            yield
        except signals.Stop:
            raise
        except BaseException as error:
            report_failure(error)
            if config_error(error) is None:
                logger.exception("Failed")
            raise
        return
    was_submitted = record.state == "queued" or is_restart()  # nobody reads why it was refused, except in run.json
    begin_attempt(record, config, ranks, trainer.strategy.name)
    end = AttemptEnd(record)

    def step() -> int:
        """Before training begins, the trainer's step is 0, whatever the run has reached."""
        return trainer.step if trainer.is_training else record.step

    def forced(signum: int, reason: str) -> None:
        name = signal.Signals(signum).name if signum else None
        end.write("failed", step(), signal=name, exit_code=deadline.CODE, reason=reason)

    with deadline.on_forced_exit(forced):
        try:
            yield
        except signals.Stop as stop:
            name = signal.Signals(stop.signum).name
            logger.info("Stopped by %s at step %d; the same command resumes from there.", name, step())
            end.write("preempted", step(), signal=name, exit_code=int(stop.code or 0))
            for line in end_lines(record, config, sys.stdout):
                logger.info(line)
            raise
        except BaseException as error:
            report_failure(error)
            if config_error(error) is not None and not trainer.is_training and not was_submitted:
                end.withdraw()
            else:
                end.fail(error, step())
            raise
        if trainer.is_paused:
            end.write("paused", trainer.step, exit_code=0, reason=f"trainer.pause_at={trainer.pause_at}")
        else:
            end.write("completed", trainer.step, exit_code=0, reason=trainer.state.stop_reason)


def write_hydra_record(config: DictConfig, folder: Path) -> None:
    """`.hydra/config.yaml` (resolved), `overrides.yaml` and `hydra.yaml`, as Hydra's own tools read them."""
    from hydra.core.hydra_config import HydraConfig

    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(resolved_yaml(config))
    if HydraConfig.initialized():
        hydra = HydraConfig.get()
        (folder / "overrides.yaml").write_text(OmegaConf.to_yaml(hydra.overrides.task))
        (folder / "hydra.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create({"hydra": hydra})))
