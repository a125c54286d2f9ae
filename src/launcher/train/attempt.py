"""Builds a trainer, trains, and reports how that ended."""

import sys
from collections.abc import Mapping

import torch
from omegaconf import OmegaConf

from launcher.checkpoint.read_ahead import read_ahead
from launcher.config.run_config import RunConfig
from launcher.hooks.run_record import RecordHook
from launcher.process import signals
from launcher.process.device import cpu_kernels, device_name
from launcher.process.parent import early_kill
from launcher.process.plural import plural
from launcher.process.ranks import Ranks, on_main
from launcher.remaining import data_that_counts
from launcher.run_advice import is_done
from launcher.rundir.data_files import state_of_files
from launcher.rundir.logs import setup_logging
from launcher.rundir.provenance import MACHINE, code_state, describe_machine, machine_state
from launcher.trackers.base import build_trackers
from launcher.trackers.follower_process import FollowerProcess
from launcher.train.attempt_record import AttemptLog, saves
from launcher.train.build import build_trainer, logger
from launcher.train.composed import Trainer
from launcher.train.length import with_max_steps
from launcher.train.micro_batch import with_micro_batch_size
from launcher.train.run_summary import end_lines, format_time, log_lines, start_lines


def train_run(config: RunConfig) -> dict[str, object] | None:
    folder = config.folder
    setup_logging(None, Ranks.from_env().rank, keep=True)
    config = with_max_steps(config)
    if on_main(lambda: is_done(config)):
        return None
    follower = FollowerProcess(
        folder, on_main(lambda: usable_trackers(config.plain.get("tracker")))
    )
    log = AttemptLog(config, folder, on_begin=follower.start)
    # Before the data are read: a later change then shows in their fingerprint.
    if log.ranks.is_main:
        log.data_files = state_of_files(data_that_counts(config))
    trainer: Trainer | None = None
    try:
        with log.record_end():
            config = with_micro_batch_size(config, folder)
            log.config = config
            recorder = RecordHook(log.begin, log.changes_since)
            with read_ahead(folder):
                trainer = build_trainer(config, folder, [recorder])
            # The run's own code is imported now. Git of many ranks would burden a file server.
            code = on_main(code_state)
            trainer.context.texts["code.yaml"] = OmegaConf.to_yaml(code)
            machine = _machine_of(trainer)
            trainer.context.texts[MACHINE] = OmegaConf.to_yaml(machine)
            log.take(trainer, code, describe_machine(machine))
            recorder.record, recorder.launched = log.record, log.launched
            _log_start(config, trainer)
            trainer.train()
            report_end(log, trainer)
    except signals.SignalExit:
        if trainer is not None:
            trainer.strategy.teardown()
        raise
    except Exception:
        follower.wait()
        raise
    trainer.strategy.teardown()
    follower.wait()
    return trainer.state.metrics


def _machine_of(trainer: Trainer) -> dict[str, object]:
    dataset = getattr(trainer.data_loader, "dataset", None)
    mark = getattr(dataset, "fingerprint", None)
    data = mark if isinstance(mark, str) else None
    device = device_name(trainer.device)
    return machine_state(device, torch.get_num_threads(), cpu_kernels(), data)


def _log_start(config: RunConfig, trainer: Trainer) -> None:
    logger.info("Run %s", config.folder.path)
    log_lines(start_lines(trainer, config))
    if not saves(trainer):
        logger.warning(
            "hooks has no checkpointing: this run saves nothing, and the same command trains it"
            " again from step 0."
        )
    if warning := early_kill(config.plain["dispatch"].get("grace")):
        logger.warning(warning)


def report_end(log: AttemptLog, trainer: Trainer) -> None:
    if trainer.is_paused:
        how, reason = "Paused", f"trainer.pause_at={trainer.pause_at}"
        log.end("paused", trainer.step, exit_code=0, reason=reason)
    else:
        how = "Completed"
        log.end("completed", trainer.step, exit_code=0, reason=trainer.state.stop_reason)
    taken = "" if log.record is None else f" after {format_time(log.record)}"
    logger.info("%s at step %d%s.", how, trainer.step, taken)
    if skipped := trainer.state.skipped_steps:
        logger.warning(
            "%s skipped over the whole run, for a gradient that was not finite.",
            f"{plural(skipped, 'update')} {'was' if skipped == 1 else 'were'}",
        )
    if log.record is not None:
        log_lines(end_lines(log.record, log.config.outputs, sys.stdout))


def usable_trackers(nodes: Mapping[str, object] | None) -> list[str]:
    """Return the names of the trackers that are updated while the run trains."""
    trackers = build_trackers(nodes)
    for name, tracker in trackers.items():
        tracker.check(f"tracker.{name}")
    return [name for name, tracker in trackers.items() if not tracker.waits_for_sync]
