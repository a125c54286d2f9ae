"""job=train: open the run's folder, train, and leave the truth about it in run.json."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from launcher.errors import ConfigError, config_error
from launcher.hooks.record import RecordHook
from launcher.run import deadline, signals
from launcher.run.folder import RunFolder
from launcher.run.lock import RunLock, held_here, refusal
from launcher.run.logs import setup_logging
from launcher.run.ranks import Ranks, broadcast, on_main, tell_failure, told_failure
from launcher.run.record import Outcome, RunRecord
from launcher.train.build import build_trainer, code_state, logger, resolved_yaml
from launcher.train.trainer import Trainer


class TrainJob:
    """Trains, or goes on with, the run that the configuration names."""

    def run(self, config: DictConfig) -> dict[str, Any] | None:
        """
        Returns:
            The last value of each logged metric, for sweepers; None for a run that was complete already.
        Raises:
            signals.Stop: stopped by a signal, checkpoint durable; a SystemExit with code 128 + signal.
            ConfigError: refused; nothing was written.
        """
        folder, ranks = RunFolder(config.run.dir), Ranks.from_env()
        setup_logging(None, ranks.rank)
        if on_main(lambda: nothing_to_do(config, folder)):
            return None
        lock = RunLock(folder, sleep=_sleep, on_taken=give_up) if ranks.is_main else None
        code = code_state()
        plain: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(resolved_yaml(config)))  # type: ignore[assignment]
        recorder = RecordHook(None, plain, code)
        try:
            trainer = build_trainer(config, folder, [recorder])
        except Exception as error:
            tell_failure(error)
            if config_error(error) is not None or lock is None:
                raise
            with lock:
                with folder.being_written():
                    folder.create()
                    write_hydra_record(config, folder.hydra)
                with attempt(open_record(config, folder), config, ranks):
                    raise error
        trainer.context.texts["code.yaml"] = OmegaConf.to_yaml(code)
        try:
            with opened(config, folder, lock) as record:
                setup_logging(folder.log_path(ranks.rank), ranks.rank)
                logger.info("Run %s", folder.path)
                recorder.record = record
                with attempt(record, config, ranks, trainer):
                    trainer.context.attempt = broadcast(record.attempt.number if record and record.attempt else 1)
                    trainer.train()
                logger.info("Completed at step %d.", trainer.step)
        except signals.Stop:
            trainer.strategy.teardown()
            raise
        trainer.strategy.teardown()
        return trainer.state.metrics


def _sleep(seconds: float) -> None:
    """Waiting for another machine's lock takes up to half a minute, in which a signal may come."""
    time.sleep(seconds)
    signals.check()


def give_up() -> None:
    """Another process has this run now: not a byte more may be written."""
    logging.shutdown()
    os._exit(1)


def nothing_to_do(config: DictConfig, folder: RunFolder) -> bool:
    """Whether the run is complete.

    Raises:
        ConfigError: another process of this machine is on it. This is before the work of building; the lock decides.
    """
    if folder.record_path.exists() and (record := open_record(config, folder)).state == "completed":
        logger.info("%s is complete already (step %d): nothing to do.", folder.path, record.step)
        return True
    if held := held_here(folder):
        raise ConfigError(refusal(folder, held))
    return False


def open_record(config: DictConfig, folder: RunFolder) -> RunRecord:
    return RunRecord(folder)


@contextmanager
def opened(config: DictConfig, folder: RunFolder, lock: RunLock | None) -> Iterator[RunRecord | None]:
    """The run's folder, held by rank 0; the others find it made, and get no record."""

    def take() -> None:
        assert lock is not None
        lock.acquire()
        with folder.being_written():
            folder.create()
            write_hydra_record(config, folder.hydra)

    try:
        on_main(take)
        yield open_record(config, folder) if lock is not None else None
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def attempt(
    record: RunRecord | None, config: DictConfig, ranks: Ranks, trainer: Trainer | None = None
) -> Iterator[None]:
    """One attempt in run.json, closed with what became of it; `trainer` is None if it could not be built."""
    if record is None:
        try:
            yield
        except signals.Stop:
            raise
        except BaseException as error:
            tell_failure(error)
            if config_error(error) is None:
                logger.exception("Failed")
            raise
        return
    with RunFolder(config.run.dir).being_written():
        record.begin_attempt(
            start_step=record.step,
            max_steps=config.trainer.max_steps,
            world_size=ranks.world_size,
            strategy=config.strategy._target_.rsplit(".", 1)[-1] if trainer is None else trainer.strategy.name,
        )

    def step() -> int:
        return record.step if trainer is None else trainer.step

    def forced(signum: int, reason: str) -> None:
        close("failed", signal=signal.Signals(signum).name, exit_code=deadline.CODE, reason=reason)

    def close(outcome: Outcome, **details: Any) -> None:
        try:
            record.end_attempt(outcome, end_step=step(), **details)
        except OSError as error:  # must not hide why the attempt ended
            logger.error("%s could not be written: %s.", record.path, error.strerror)

    try:
        with deadline.last_words(forced):
            yield
    except signals.Stop as stop:
        name = signal.Signals(stop.signum).name
        logger.info("Stopped by %s at step %d; the same command goes on from there.", name, step())
        close("preempted", signal=name, exit_code=int(stop.code or 0))
        raise
    except BaseException as error:
        tell_failure(error)
        code = 1 if config_error(error) is None else 2
        reason = told_failure() or f"{type(error).__name__}: {error}"  # another rank's, of which this error is the echo
        if code == 1:
            logger.error("Failed at step %d: %s", step(), reason)
        close("failed", exit_code=code, reason=reason[:500])
        raise
    close("completed", exit_code=0, reason=trainer.state.stop_reason if trainer else None)


def write_hydra_record(config: DictConfig, folder: Path) -> None:
    """`.hydra/config.yaml` (resolved), `overrides.yaml` and `hydra.yaml`, as Hydra's own tools read them."""
    from hydra.core.hydra_config import HydraConfig

    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(resolved_yaml(config))
    if HydraConfig.initialized():
        hydra = HydraConfig.get()
        (folder / "overrides.yaml").write_text(OmegaConf.to_yaml(hydra.overrides.task))
        (folder / "hydra.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create({"hydra": hydra})))
