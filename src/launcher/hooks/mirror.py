"""Trackers for a trainer without a configuration: they mirror the metrics of its workspace.

The workspace becomes a run folder: with `run.json`, a lock, and `metrics.jsonl`, which a process of
its own reads (see `launcher.trackers.follower`). `python -m launcher.runs sync WORKSPACE` completes
a tracker later.
"""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from launcher.config.tree import flat
from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook
from launcher.hooks.jsonl import JsonlHook
from launcher.hooks.media import MediaHook
from launcher.hooks.view import TrainerView
from launcher.process.ranks import on_main, rank, world_size
from launcher.rundir.folder import Workspace
from launcher.rundir.lock import RunLock
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import Outcome
from launcher.trackers.base import Tracker
from launcher.trackers.follower_process import FollowerProcess
from launcher.trackers.mlflow import MlflowTracker
from launcher.trackers.tensorboard import TensorBoardTracker
from launcher.trackers.wandb import WandbTracker


class TrackerHook(BaseHook):
    """Base of the hooks below. The first of a trainer does the work for all of them.

    Args:
        config: the configuration that the trackers show.
        options: options of the tracker.
    """

    provides = ()
    name: ClassVar[str]
    tracker: ClassVar[type[Tracker]]

    def __init__(self, config: Mapping[str, object] | None = None, **options: object):
        self.config = dict(config or {})
        self.options = options
        # Options that the tracker does not have are rejected by making one.
        self.tracker(**options)
        self._all: list[TrackerHook] = []
        """The hooks for which this one does the work."""
        self._lock: RunLock | None = None
        self._record: RunRecord | None = None
        self._follower: FollowerProcess | None = None
        self._error: Exception | None = None
        self._has_ended = False

    def on_start(self, trainer: TrainerView) -> None:
        hooks = [hook for hook in trainer.hooks if isinstance(hook, TrackerHook)]
        if any(hook._all for hook in hooks if hook is not self):
            # The first such hook works for all of them.
            return
        self._all = hooks
        names = [hook.name for hook in hooks]
        if len(set(names)) < len(names):
            raise ConfigError(f"build_hooks: has two hooks for one tracker ({', '.join(names)}).")
        if trainer.workspace is None:
            raise ConfigError(f"{type(self).__name__}: needs a workspace; set workspace=...")
        if trainer.context.texts:
            raise ConfigError(
                f"{type(self).__name__}: this run has a configuration; choose tracker={self.name}."
            )
        for hook in hooks:
            hook.tracker(**hook.options).check(type(hook).__name__)
        for hook_class in (JsonlHook, MediaHook):
            if not any(isinstance(hook, hook_class) for hook in trainer.hooks):
                added = hook_class()
                trainer.hooks.append(added)
                added.on_start(trainer)
        # The mirror ends last, since the other hooks still write when they close.
        trainer.hooks.remove(self)
        trainer.hooks.append(self)
        if rank() == 0:
            # The run is named by the parent folder, which a relative path may not have.
            self._lock = RunLock(Workspace(trainer.workspace.absolute()))
        on_main(self._acquire)

    def _acquire(self) -> None:
        assert self._lock is not None
        self._lock.acquire()
        self._record = RunRecord(self._lock.folder, check_lock=self._lock.check)

    def on_ready(self, trainer: TrainerView) -> None:
        record = self._record
        if record is None:
            return
        config: dict[str, Any] = {}
        for hook in self._all:
            config |= hook.config
        config["tracker"] = {hook.name: hook.node() for hook in self._all}
        record.folder.logs.mkdir(exist_ok=True)
        record.begin_attempt(
            start_step=trainer.step,
            max_steps=trainer.max_steps,
            world_size=world_size(),
            strategy=trainer.strategy.name,
            command={"config": flat(config)},
        )
        names = [hook.name for hook in self._all if not hook.tracker(**hook.options).waits_for_sync]
        self._follower = FollowerProcess(record.folder, names)
        self._follower.start()

    def on_before_step(self, trainer: TrainerView) -> None:
        if self._record is not None:
            self._record.progress(trainer.step - 1)

    def on_error(self, trainer: TrainerView, error: Exception) -> None:
        self._error = error

    def on_after_train(self, trainer: TrainerView) -> None:
        self._has_ended = True

    def on_close(self, trainer: TrainerView) -> None:
        try:
            if self._record is not None and self._follower is not None:
                self._end(trainer, self._record)
        finally:
            if self._lock is not None:
                self._lock.release()
        if self._follower is not None:
            self._follower.wait()

    def _end(self, trainer: TrainerView, record: RunRecord) -> None:
        signum = trainer.stop_signal
        end = dict[str, Any](exit_code=0)
        if self._has_ended:
            outcome: Outcome = "completed"
            end["reason"] = trainer.state.stop_reason
        elif trainer.is_paused:
            outcome = "paused"
            end["reason"] = "pause_at"
        elif signum:
            outcome = "preempted"
            end = {"signal": signal.Signals(signum).name, "exit_code": 128 + signum}
        else:
            reason = f"{type(self._error).__name__}: {self._error}" if self._error else None
            outcome = "failed"
            end = {"exit_code": 1, "reason": reason}
        try:
            record.end_attempt(outcome, end_step=trainer.step, **end)
        except OSError:
            # An error of writing must not hide why training has failed.
            if outcome != "failed":
                raise

    def node(self) -> dict[str, Any]:
        """Return the tracker as a configuration."""
        target = f"{self.tracker.__module__}.{self.tracker.__name__}"
        return {"_target_": target, **self.options}


class TensorBoardHook(TrackerHook):
    """Mirrors to TensorBoard, with the arguments of `launcher.trackers.tensorboard`.

    Examples:
        >>> class Mirrored(Line):
        ...     def build_hooks(self):
        ...         return [LoggingHook(interval=1), TensorBoardHook(config={"width": 1})]
    """

    name = "tensorboard"
    tracker = TensorBoardTracker


class MlflowHook(TrackerHook):
    """Mirrors to MLflow, with the arguments of `launcher.trackers.mlflow.MlflowTracker`.

    Examples:
        >>> class Mirrored(Line):
        ...     def build_hooks(self):
        ...         return [LoggingHook(interval=1), MlflowHook(experiment="lines")]
    """

    name = "mlflow"
    tracker = MlflowTracker


class WandbHook(TrackerHook):
    """Mirrors to Weights & Biases.

    Args:
        project: WANDB_PROJECT has precedence.
        config: the configuration that W&B shows. A path is read as a JSON file.
        tags: in addition to those in WANDB_TAGS.
        options: options of `launcher.trackers.wandb.WandbTracker` (name, entity, group, notes,
            mode, ...).

    Examples:
        >>> class Mirrored(Line):
        ...     def build_hooks(self):
        ...         return [LoggingHook(interval=1), WandbHook(project="lines", mode="offline")]
    """

    name = "wandb"
    tracker = WandbTracker

    def __init__(
        self,
        project: str,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        tags: list[str] | None = None,
        image_format: Literal["png", "jpeg"] = "png",
        **options: Any,
    ):
        if isinstance(config, (str, os.PathLike)):
            config = json.loads(Path(config).read_text())
        assert config is None or isinstance(config, Mapping)
        super().__init__(
            config,
            project=os.environ.get("WANDB_PROJECT") or project,
            tags=list(tags or ()),
            image_format=image_format,
            **options,
        )
