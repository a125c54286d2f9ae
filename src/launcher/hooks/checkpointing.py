"""Decides when to save, what to keep, and when to leave. The package `checkpoint` does the rest."""

import copy
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

from launcher.checkpoint.chain import ChainWriter
from launcher.checkpoint.drift import read_sources, with_sources
from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import Payload, SaveFailed, Saver, check_storable
from launcher.checkpoint.store import CheckpointStore
from launcher.config.schema.checks import parse_signal, signal_issue
from launcher.config.schema.matters_from import before_last_line, never
from launcher.config.tree import Node
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook
from launcher.hooks.best import Best
from launcher.hooks.interval import Interval
from launcher.hooks.records import show
from launcher.hooks.state import hook_shards, hook_states
from launcher.hooks.view import Records, State, TrainerView
from launcher.process import deadline, signals
from launcher.process.rng import rng_state
from launcher.resume.restorer import CheckpointRestorer
from launcher.resume.shared import steps_to_await
from launcher.resume.unstored import Unstored, message
from launcher.rundir.folder import RunFolder, place_of, run_name, step_name
from launcher.rundir.imported_sources import digest_imported_sources, source_changes
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.strategies.weights import find_lost_tensors, tensor_shapes
from launcher.types import Delay, ExitCode, NonEmptyText, NonNegativeInt, PositiveInt, Seconds

BEST_KEYS = "hooks.checkpointing.best_metric", "hooks.checkpointing.best_mode"


class CheckpointingHook(BaseHook):
    """Saves a checkpoint at intervals, at the last step, on a signal, and when a metric is best.

    Args:
        interval: in optimizer steps, or in epochs (`1epoch`).
        keep_previous: keep this many checkpoints before the newest.
        keep_interval: also save at every multiple of this step, and never delete these checkpoints.
            With 0, none.
        keep_steps: also save at these steps, and never delete these checkpoints.
        path: relative to the workspace. Outside it, the checkpoints are in `<path>/<name>/<id>`,
            and the run's `checkpoints` is a link to that folder.
        load: the checkpoint to resume from. "auto" and "latest" mean the newest valid checkpoint,
            if there is one. "must" raises if there is none, "never" raises if there is one. None
            ignores checkpoints. The folder of a checkpoint, a step or "best" loads this checkpoint
            and sets later ones aside. It holds for the first start of a SLURM job, which resumes
            the newest checkpoint once it is requeued.
        exit_signals: further signals to save and exit on, by name or number.
        exit_code: "128+signal" or a number.
        exit_delay: seconds (or a timedelta) to wait before exiting, for a scheduler that must see a
            time-out.
        asynchronous: training waits for a copy to host memory, not for the disk.
        write_timeout: seconds without progress after which a writer is abandoned. That save has
            failed, and training waits for each later one.
        best_metric: logged name of a metric. The checkpoint of a better value is saved, linked as
            `best`, and kept.
        best_mode: whether less or more is better. With auto, the metric's name decides.
    Raises:
        ValueError: an interval below 1, or an unknown `exit_code`.
        ConfigError: an unknown signal; a `path` that is a URL.

    Examples:
        >>> class Saving(Line):
        ...     def build_hooks(self):
        ...         return [CheckpointingHook(interval=2)]
        >>> Saving(max_steps=2, device="cpu", workspace="line").train()
        >>> longer = Saving(max_steps=3, device="cpu", workspace="line")
        >>> longer.train()
        >>> longer.resumed_from.name
        'step-00000002'
    """

    changes_numbers = False
    provides = ("checkpointing",)
    needs: ClassVar = {"best_metric=train/*": "logging"}
    matters_from: ClassVar = {
        "best_metric": before_last_line,
        "best_mode": before_last_line,
        "*": never,
    }

    def __init__(
        self,
        interval: PositiveInt | str,
        keep_previous: NonNegativeInt = 0,
        keep_interval: NonNegativeInt = 0,
        keep_steps: list[PositiveInt] | None = None,
        path: NonEmptyText | Path = "checkpoints",
        load: str | int | Path | None = "latest",
        exit_signals: signal.Signals | str | int | list[signal.Signals | str | int] | None = None,
        exit_code: Literal["128+signal"] | ExitCode = "128+signal",
        exit_delay: Delay | timedelta = 0.0,
        asynchronous: bool = True,
        write_timeout: Seconds = 600.0,
        best_metric: str | None = None,
        best_mode: Literal["auto", "min", "max"] = "auto",
    ):
        if not isinstance(exit_code, int) and exit_code != "128+signal":
            raise ValueError(f"exit_code={exit_code!r}: should be '128+signal' or a number.")
        if "://" in str(path):
            raise ConfigError(f"hooks.checkpointing.path={path}: is a URL; use a folder.")
        self.interval = Interval(interval, "hooks.checkpointing.interval")
        self.retention = Retention(keep_previous, keep_interval, tuple(keep_steps or ()))
        self.path = path
        self.load = load
        self.exit_signals, self.exit_code = signal_list(exit_signals), exit_code
        self.exit_delay = exit_delay
        self.asynchronous, self.write_timeout = asynchronous, write_timeout
        self.best = Best(best_metric, best_mode, keys=BEST_KEYS) if best_metric else None
        self._handlers: dict[int, object] = {}
        self._built: dict[str, tuple[int, ...]] = {}
        self.saved_at = -1
        self._observed_at = -1
        """Steps of the newest save and of the newest value of the best metric."""
        self._improved = False
        self._is_postponed = False
        self._is_checked = False
        self._is_stale = False
        self._best_saved: tuple[float | None, int] = (None, 0)
        """Value and step of the best checkpoint that is durable."""
        self._best_in_flight: tuple[float | None, int] | None = None

    # ------------------------------------------------------------------------------------ restoring
    def on_start(self, trainer: TrainerView) -> None:
        self._unstored = Unstored()
        self._has_looked = False
        self.interval.check(trainer)
        trainer.state.best = self.best
        if self.exit_signals:
            theirs = not signals.handled_signals()
            handlers = signals.install(self.exit_signals)
            # `python -m launcher` keeps its handlers until it ends.
            self._handlers = handlers if theirs else {}
        context = trainer.context
        self.store = self._store(trainer)
        self.store.check_lock = context.check_lock
        self.resuming = CheckpointRestorer(
            self.store, self.load, context.fork, context.texts.get("config.yaml"), context.shared
        )
        snapshot = trainer.strategy.snapshot()
        check_storable(snapshot.tensors, snapshot.meta, type(trainer.optimizer).__name__)
        folder = (trainer.workspace or Path()).parent
        retention = replace(self.retention, awaited=lambda: steps_to_await(folder, context.leaves))
        self.saver = Saver(self.store, trainer.strategy.ranks, retention, self.write_timeout)

    def _store(self, trainer: TrainerView) -> CheckpointStore:
        workspace = trainer.workspace or Path()
        root = place_of(trainer.workspace, self.path)
        if trainer.workspace is None:
            return CheckpointStore(root, trainer.logger, None, [])
        is_outside = not root.is_relative_to(workspace)
        has_names = is_outside or "config.yaml" in trainer.context.texts
        names = RunOnDisk.read(workspace).names if has_names else []
        return CheckpointStore(root, trainer.logger, RunFolder(workspace).checkpoints, names)

    def on_restore(self, trainer: TrainerView) -> None:
        if trainer.strategy.has_plain_tensors:
            self._built = tensor_shapes(trainer.model)
        checkpoint = self.resuming.restore(trainer)
        if checkpoint is not None and checkpoint.parent == self.store.root:
            self.saved_at = trainer.step
        # The source files as they were imported: a later edit is not part of this attempt.
        current = digest_imported_sources()
        has_report = "config.yaml" in trainer.context.texts  # of `launcher.hooks.run_record`
        if checkpoint is not None and trainer.strategy.ranks.is_main and not has_report:
            for message in source_changes(read_sources(checkpoint), current):
                trainer.logger.warning("Changed since the checkpoint: %s", message)

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        saved = state_dict.get("checkpointing", {}).get("best")
        # A fork's checkpoint has the best value of another run.
        if self.best is None or not saved or self.resuming.choice.is_fork:
            return
        self.best.load(saved)
        self._best_saved = (self.best.value, self.best.step)
        if self.best.value is not None and self.best.step == trainer.step == self.saved_at:
            # The process may have been killed between this save and its link.
            self._mark_best(trainer)

    def on_ready(self, trainer: TrainerView) -> None:
        self.resuming.abandon_later(trainer)
        self.resuming.take_over(trainer)
        if trainer.strategy.ranks.is_main and trainer.workspace is not None:
            run = RunFolder(trainer.workspace)
            parent = trainer.resumed_from
            self.store.chain = ChainWriter(run, self.store.root, self.store.check_lock)
            self.store.chain.begin(trainer.step, parent if self.resuming.choice.is_fork else None)

    # ----------------------------------------------------------------------------------------- when
    def on_log(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        best = self.best
        step = trainer.step
        # A resume has repeated an evaluation that a signal had ended.
        self._is_stale |= step == self.saved_at and not dry_run
        if best is None or dry_run or not best.observe(records):
            return
        self._observed_at = step
        value = best.value
        at = best.step
        if step == 0 or trainer.update_was_skipped() or not best.update(step):
            return
        # A signal may have interrupted the evaluation of a step that is saved.
        self._improved = self.saved_at != step or self.saver.in_flight
        if not self._improved:
            self._best_saved = (best.value, best.step)
            self._mark_best(trainer)
        before = "" if value is None else f" (before: {show(value)} at step {at})"
        assert best.value is not None
        trainer.logger.info(
            "Step %d: %s %s is the best so far%s.", step, best.metric, show(best.value), before
        )

    def _mark_best(self, trainer: TrainerView) -> None:
        if trainer.strategy.ranks.is_main:
            self.store.mark_best(trainer.step)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        signum = trainer.stop_signal
        step = trainer.step
        ends = bool(signum) or trainer.is_paused or trainer.state.is_at_end()
        if ends:
            # A failed save of this step is tried again below.
            self._await(trainer)
        was_saved = step == self.saved_at
        is_due = ends or was_saved or self._is_due(trainer, step)
        if is_due and step > 0 and (self._is_stale or not was_saved):
            self._save_unless_broken(trainer, wait=ends)
        if not self._is_checked and step > 0:
            # What cannot be stored is found before there is much to lose.
            payload = self._payload(trainer)
            if self._is_checked and self.asynchronous and not ends:
                self.saver.prepare(payload)
        if signum:
            self._exit_after_signal(trainer, signum)

    def on_before_step(self, trainer: TrainerView) -> None:
        if not self._has_looked:
            self._has_looked = True
            self._unstored.begin(trainer)
        if self.best is not None:
            self.best.check(trainer)

    def on_after_train(self, trainer: TrainerView) -> None:
        if self.best is not None:
            self.best.check_end(trainer, needs_validation=False)

    def _is_due(self, trainer: TrainerView, step: int) -> bool:
        return (
            self.interval.is_due(trainer, step)
            or self.retention.is_permanent(step)
            or step in trainer.context.leaves
            or self._improved
            or self._is_postponed
        )

    # ----------------------------------------------------------------------------------------- save
    def _save_unless_broken(self, trainer: TrainerView, wait: bool) -> None:
        """Save, unless a broken state would replace the last good checkpoint."""
        was_postponed = self._is_postponed
        self._is_postponed = trainer.update_was_skipped()
        if not self._is_postponed:
            with trainer.context.times.measure("saving"):
                self._save(trainer, wait)
        elif not was_postponed or wait:
            trainer.logger.warning(
                "Step %d: no checkpoint is saved, since the update was skipped; the next good step"
                " saves one.",
                trainer.step,
            )

    def _save(self, trainer: TrainerView, wait: bool) -> None:
        self._await(trainer)
        if self.best is not None and self._observed_at == trainer.step:
            # A better value could not be saved and no longer counts.
            self._improved |= self.best.update(trainer.step)
        payload = self._payload(trainer)
        self._warn_of_lost_tensors(trainer)
        # The grace after a signal is for the save.
        if not trainer.stop_signal:
            payload.unstored = self._look(trainer, payload)
        if self._improved and self.best is not None:
            self._improved, self._best_in_flight = False, (self.best.value, self.best.step)
        started = time.perf_counter()
        try:
            self.saver.save(payload, wait=wait or not self.asynchronous)
        except SaveFailed as error:
            self._report(trainer, error)
            if wait:
                raise TrainingError(
                    f"The checkpoint of step {trainer.step} could not be written: {error}"
                ) from error
            return
        seconds = time.perf_counter() - started
        self.saved_at = trainer.step
        self._is_stale = False
        if not self.saver.in_flight:
            self._note_saved(trainer)
        done = "copied, being written" if self.saver.in_flight else "saved"
        trainer.logger.info("Step %d: checkpoint %s after %.2f s.", trainer.step, done, seconds)

    def _warn_of_lost_tensors(self, trainer: TrainerView) -> None:
        """Name at the first save the tensors that a resume would reject."""
        built = self._built
        self._built = {}
        if built and (lost := find_lost_tensors(trainer.model, built)):
            trainer.logger.warning(
                "This checkpoint cannot be resumed: %s appeared or changed its shape in training,"
                " and its module does not restore it. Make it in the constructor in its final"
                " shape, or restore it in _load_from_state_dict.",
                ", ".join(lost),
            )

    def _look(self, trainer: TrainerView, payload: Payload) -> dict[str, str]:
        """Return what a resume would lose of this rank; rank 0 warns of it."""
        hooks = payload.rank_state["hooks"]
        lost = self._unstored.look(trainer, payload.tensors, hooks)
        self._report_unstored(trainer, lost)
        return lost

    def _report_unstored(self, trainer: TrainerView, lost: dict[str, str]) -> None:
        if trainer.strategy.ranks.is_main:
            trainer.context.unstored = self._unstored.data()
            if lost:
                trainer.logger.warning(message(list(lost.values())))

    def _payload(self, trainer: TrainerView) -> Payload:
        strategy = trainer.strategy
        workspace = trainer.workspace
        training_state = trainer.training_state()
        hooks = hook_states(trainer, training_state)
        snapshot = strategy.snapshot()
        tensors, parts = hook_shards(trainer)
        # A user's loader may have another position on each rank. Our loader counts the samples of
        # all ranks.
        rank_state = {"rng": rng_state(), "hooks": hooks}
        if strategy.ranks.world_size > 1:
            rank_state["data_loader"] = training_state["data_loader"]
        manifest = Manifest(
            step=trainer.step,
            world_size=strategy.ranks.world_size,
            strategy=strategy.name,
            checkpoint_format=strategy.checkpoint_format,
            samples=trainer.samples,
            run=None if workspace is None else run_name(workspace),
        )
        tensors = snapshot.tensors | tensors
        # An optimizer has its state after its first update.
        if not self._is_checked and not trainer.state.skipped_in_row:
            self._is_checked = True
            state = snapshot.meta | rank_state | {"training_state": training_state}
            check_storable(tensors, state, type(trainer.optimizer).__name__)
        return Payload(
            step=trainer.step,
            manifest=manifest,
            tensors=tensors,
            parts=snapshot.parts | parts,
            rank_state=rank_state,
            global_state={**snapshot.meta, "training_state": training_state},
            texts=with_sources(trainer.context.texts),
            is_best=self._improved,
        )

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        state_dict.update(_notes(self.best))

    def state_after(self, lines: Iterable[Node]) -> dict[str, object]:
        """Return the state of a run that has logged these lines, without a skipped update."""
        best = copy.copy(self.best)
        if best is not None:
            list(best.replay(line for line in lines if line["step"] > 0))
        return _notes(best)

    def _await(self, trainer: TrainerView) -> None:
        """Wait for the current save. A failure is logged, and a later save tries again."""
        self._end_save(trainer, self.saver.finish)

    def _end_save(self, trainer: TrainerView, wait: Callable[[], None]) -> None:
        if not self.saver.in_flight:
            return
        try:
            with trainer.context.times.measure("saving"):
                wait()
        except SaveFailed as error:
            self._report(trainer, error)
        else:
            self._note_saved(trainer)

    def _note_saved(self, trainer: TrainerView) -> None:
        self._best_saved = self._best_in_flight or self._best_saved
        self._best_in_flight = None
        new = self._unstored.add(self.saver.unstored)
        if new:
            self._report_unstored(trainer, new)
        trainer.fire("on_checkpoint_saved", self.store.root / step_name(self.saved_at))

    def _report(self, trainer: TrainerView, error: SaveFailed) -> None:
        self.saved_at = -1
        if self._best_in_flight is not None and self.best is not None and not self._improved:
            # The best checkpoint must exist on disk.
            self.best.value, self.best.step = self._best_saved
        self._best_in_flight = None
        trainer.logger.error(
            "The checkpoint could not be written: %s. Training continues; the previous one is"
            " valid, and the next interval tries again.",
            error,
        )

    # ------------------------------------------------------------------------------------------ end
    def _exit_after_signal(self, trainer: TrainerView, signum: int) -> None:
        delay = self.exit_delay
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if seconds:
            trainer.logger.info("Saved; leaving in %g s.", seconds)
            deadline.progress(seconds)
            time.sleep(seconds)
        code = None if isinstance(self.exit_code, str) else self.exit_code
        raise signals.SignalExit(signum, code)

    def on_close(self, trainer: TrainerView) -> None:
        if hasattr(self, "saver"):
            self._end_save(trainer, self.saver.close)
            # After a signal the time is short, and the next start adds what is missing.
            if self.store.chain is not None and not trainer.stop_signal:
                self.store.chain.finish()
        signals.restore(self._handlers)


def _notes(best: Best | None) -> dict[str, object]:
    return {"checkpointing": {} if best is None else {"best": best.state()}}


def signal_list(signums: Any) -> list[signal.Signals]:
    """Return one or several signals, by name (`SIGUSR1`, `USR1`) or number, as a list."""
    if signums is None:
        return []
    values: list[Any] = [signums] if isinstance(signums, (str, int)) else list(signums)
    for value in values:
        issue = signal_issue("hooks.checkpointing.exit_signals", value)
        if issue:
            raise ConfigError(str(issue))
    return [parsed for parsed in map(parse_signal, values) if parsed is not None]
