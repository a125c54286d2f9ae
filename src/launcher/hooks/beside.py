"""Evaluations that run beside training: which are pending, and when their values take effect.

Training saves the checkpoint of a step that is due, and continues. The values take effect after the
step during which they came, on all ranks, and that step is recorded before they do. A run that
resumes from a checkpoint before it uses them after the same step again, and waits for them if
necessary, so everything that they steer is repeated. Results and arrivals are files
(`launcher.rundir.evaluations`), and the pending steps are part of each checkpoint.
"""

import re
import shutil
import time
from collections.abc import Mapping
from typing import Any

import torch

from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook, RunContext, TrainerView, overrides
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.hooks.evaluation_process import FAILED, LOG, EvaluationJobs, EvaluationProcess
from launcher.process import ranks, signals
from launcher.process.visible import VISIBLE, visible_devices
from launcher.rundir.evaluations import Evaluations
from launcher.rundir.folder import RunFolder

POLL = 0.05
"""Seconds between two looks for a result that training waits for."""
DEVICE = re.compile(r"cpu|cuda|cuda:\d+|mps")


class Beside:
    """The pending evaluations of a run, and their values.

    Args:
        key: name of the hook's settings, for messages.
        where: process or job.
        device: of the process. Default None: the device of rank 0.
        dispatch: settings of the jobs. Default None: the defaults of `dispatch=slurm`.
    """

    def __init__(
        self, key: str, where: str, device: str | None, dispatch: Mapping[str, object] | None
    ):
        if dispatch is not None and where != "job":
            raise ConfigError(f"{key}.dispatch: is for {key}.where=job; set it, or leave it out.")
        if device is not None and not DEVICE.fullmatch(device):
            raise ConfigError(f"{key}.device={device}: should be cpu, cuda, cuda:1 or mps.")
        self.key, self.where, self.device, self.dispatch = key, where, device, dispatch or {}
        self.pending: list[int] = []
        self._arrivals: dict[int, int] = {}
        self._said_at = -1
        self.check_lock = RunContext().check_lock
        self._process: EvaluationProcess | None = None
        self._checkpointing: CheckpointingHook | None = None
        self._files: Evaluations | None = None

    # ------------------------------------------------------------------------------------ its begin
    def check(self, trainer: TrainerView, is_composed: bool, is_own: bool) -> None:
        """Check that another process can repeat the evaluation.

        Args:
            trainer: the trainer of the run.
            is_composed: whether the run has a configuration.
            is_own: whether the loader is.
        Raises:
            ConfigError: it cannot.
        """
        why = None
        others = [each for each in trainer.hooks if getattr(each, "where", "inline") != "inline"]
        if len(others) > 1:
            why = "another hook evaluates beside training already, and one can"
        elif not is_composed or trainer.workspace is None:
            why = "needs a run with a configuration, since another process builds its model"
        elif _checkpointing_of(trainer) is None:
            why = "needs hooks.checkpointing, whose checkpoints are evaluated"
        elif not trainer.strategy.has_plain_tensors:
            why = f"the checkpoints of strategy={trainer.strategy.name} are read by its ranks only"
        elif self.where == "job" and shutil.which("sbatch") is None:
            why = "there is no sbatch on this machine"
        elif is_own and trainer.strategy.ranks.world_size > 1:
            why = "a loader of your own has the batches of one rank only"
        else:
            changing = [hook for hook in trainer.hooks if _changes_weights(hook)]
            if changing:
                name = type(changing[0]).__name__
                why = f"{name}.on_evaluation_start may change the weights, which it cannot repeat"
        if why is not None:
            raise ConfigError(f"{self.key}.where={self.where}: {why}; use where=inline.")

    def open(self, trainer: TrainerView) -> None:
        """Begin with the pending evaluations of the checkpoint. Called when it is restored."""
        self._checkpointing = _checkpointing_of(trainer)
        if trainer.workspace is None or self._checkpointing is None:
            self.pending = []
        else:
            folder = RunFolder(trainer.workspace)
            self._files = Evaluations(folder)
            if ranks.rank() == 0:
                options = self._options(trainer)
                self._process = (
                    EvaluationJobs(folder, options, self.dispatch)
                    if self.where == "job"
                    else EvaluationProcess(folder, options, self._environment())
                )
            self._arrivals = ranks.broadcast(self._files.arrivals())
            self._report_lost(trainer, self._missing())
            if self._process is not None:
                for step in self.pending:
                    self._process.request(step)
        self._announce(trainer)

    def _options(self, trainer: TrainerView) -> dict[str, object]:
        """Settings of training on which the bits of an evaluation depend."""
        strategy = trainer.strategy
        kind = type(strategy)
        return {
            "strategy": f"{kind.__module__}.{kind.__qualname__}",
            "world_size": strategy.ranks.world_size,
            "micro_batch_size": strategy.plan.micro_batch_size,
            "threads": torch.get_num_threads(),
            "device": None if self.device is None else self.device.partition(":")[0],
        }

    def _environment(self) -> dict[str, str]:
        _, _, number = (self.device or "").partition(":")
        if not number:
            return {}
        visible = visible_devices() or []
        return {VISIBLE: visible[int(number)] if int(number) < len(visible) else number}

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    # ------------------------------------------------------------------------------- while training
    def schedule(self, trainer: TrainerView) -> None:
        """Evaluate the current step once its checkpoint is written."""
        assert self._files is not None and self._checkpointing is not None
        step = trainer.step
        self._checkpointing.requested = step
        self.pending.append(step)
        self._announce(trainer)
        # The line of this step is kept open for the values.
        trainer.log({})
        if self._process is not None:
            self.check_lock()
            self._files.forget(step)
            self._process.request(step)

    def unschedule(self, trainer: TrainerView) -> bool:
        """Take back an evaluation of the current step; return whether there was one."""
        if trainer.step not in self.pending:
            return False
        self._drop(trainer, [trainer.step])
        return True

    def next(self, trainer: TrainerView, all_of_them: bool) -> tuple[int, dict[str, Any]] | None:
        """Return the next evaluation whose values take effect now, the same on all ranks.

        Args:
            trainer: the trainer of the run.
            all_of_them: wait for every pending evaluation.
        Returns:
            The step and the metrics, or None if there is none.
        Raises:
            signals.Interrupted: a signal came on some rank while training waited.
            TrainingError: an evaluation has failed several times.
        """
        if self.pending and self._checkpointing is not None and self._checkpointing.failed:
            lost = [step for step in self.pending if step in self._checkpointing.failed]
            self._report_lost(trainer, lost)
        if not self.pending:
            return None
        step = self.pending[0]
        recorded = self._arrivals.get(step)
        if all_of_them or (recorded is not None and recorded <= trainer.step):
            self._wait(trainer, step)
            if step not in self.pending:
                return self.next(trainer, all_of_them)
        elif recorded is not None:
            return None
        else:
            if self._process is not None:
                trainer.notice = self._process.ready
            notice = trainer.agreed_notice()
            self._check(trainer, notice, step)
            if step > notice:
                return None
        return step, self._taken(trainer, step)

    def done(self, trainer: TrainerView, step: int) -> None:
        """Forget an evaluation whose values all hooks have."""
        self.pending.remove(step)
        self._announce(trainer)

    def _taken(self, trainer: TrainerView, step: int) -> dict[str, object]:
        """Record that values take effect now, and return them."""
        metrics: dict[str, object] | None = None
        if self._process is not None and self._files is not None:
            metrics = self._files.result(step)
            if self._arrivals.get(step) != trainer.step:
                try:
                    self.check_lock()
                    self._files.note_arrivals(self._arrivals | {step: trainer.step})
                except OSError as error:
                    trainer.logger.error(
                        "%s cannot be written: %s. A resume may use the values of step %d after"
                        " another step.",
                        self._files.path,
                        error,
                        step,
                    )
        self._arrivals[step] = trainer.step
        metrics = ranks.broadcast(metrics)
        if metrics is None:
            raise TrainingError(f"The result of the evaluation of step {step} is gone.")
        return metrics

    def _wait(self, trainer: TrainerView, step: int) -> None:
        """Wait for the result of a step, or forget the step if it has no checkpoint."""
        assert self._checkpointing is not None
        is_reported = False
        while True:
            notice = ranks.maximum(0 if self._process is None else self._process.ready)
            self._check(trainer, notice, step)
            if step <= notice:
                return
            if not is_reported:
                is_reported = True
                self._checkpointing.finish(trainer)
                self._report_lost(trainer, self._missing())
                if step not in self.pending:
                    return
                self._say(trainer, step)
            if ranks.maximum(signals.received()):
                raise signals.Interrupted
            time.sleep(POLL)

    def _say(self, trainer: TrainerView, step: int) -> None:
        if self._said_at != trainer.step:
            self._said_at = trainer.step
            trainer.logger.info(
                "Step %d: waiting for the evaluation of step %d (%d pending).",
                trainer.step,
                step,
                len(self.pending),
            )

    def _check(self, trainer: TrainerView, notice: int, step: int) -> None:
        if notice == FAILED:
            reason = ranks.broadcast("" if self._process is None else self._process.failure)
            raise TrainingError(
                f"The evaluation of step {step} has failed several times: {reason} See logs/{LOG}."
            )

    def _missing(self) -> list[int]:
        """The pending steps that have neither a checkpoint nor a result, the same on all ranks."""
        files = self._files
        return ranks.broadcast(
            [
                step
                for step in self.pending
                if files is not None
                and not files.has_checkpoint(step)
                and files.result(step) is None
            ]
        )

    def _report_lost(self, trainer: TrainerView, steps: list[int]) -> None:
        for step in steps:
            trainer.logger.error("Step %d is not evaluated: it has no checkpoint.", step)
        self._drop(trainer, steps)

    def _drop(self, trainer: TrainerView, steps: list[int]) -> None:
        for step in steps:
            self.pending.remove(step)
            if self._process is not None:
                self._process.cancel(step)
        self._announce(trainer)

    def _announce(self, trainer: TrainerView) -> None:
        """Let the lines of the pending steps be held back, and their checkpoints be kept."""
        trainer.state.awaited = tuple(self.pending)
        if self._checkpointing is not None:
            self._checkpointing.store.kept = frozenset(self.pending)


def _checkpointing_of(trainer: TrainerView) -> CheckpointingHook | None:
    return next((hook for hook in trainer.hooks if isinstance(hook, CheckpointingHook)), None)


def _changes_weights(hook: BaseHook) -> bool:
    """Return whether a hook may change the weights for an evaluation.

    The evaluating process repeats what Launcher's own hooks do.
    """
    is_own = type(hook).__module__.startswith("launcher.")
    return overrides(hook, "on_evaluation_start") and not is_own
