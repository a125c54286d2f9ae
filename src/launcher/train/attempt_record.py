"""One attempt at a run: the moment from which on it writes, and the record of its end in run.json.

Nothing of a run is written before every reason to reject the command has been checked: the trainer
is built, the lock is held, and the checkpoint is restored and fits. Then `begin` writes `.hydra/`,
`run.json` and the logs, and starts the trackers. An attempt that crashes earlier is recorded too. A
rejected attempt changes nothing.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from launcher.checkpoint.drift import changes_since, environment_changes
from launcher.config.explain import explain, unwrap_cause
from launcher.config.identity.lookup import describe_nearest_run
from launcher.config.run_config import RunConfig
from launcher.config.secrets import without_environment
from launcher.config.settings import AUTO
from launcher.errors import REJECTED, TrainingError, config_error, is_out_of_memory
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.process import deadline, signals
from launcher.process.files import fsync_file, remove_empty, replacing
from launcher.process.ranks import Ranks, broadcast, on_main, read_failure, report_failure
from launcher.process.times import launch_time
from launcher.process.user_exits import exits_are_errors
from launcher.rundir import reproduction
from launcher.rundir.folder import RunFolder
from launcher.rundir.imported_sources import digest_imported_sources
from launcher.rundir.lock import RunLock
from launcher.rundir.logs import setup_logging
from launcher.rundir.provenance import is_restart, slurm_job_id
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import Outcome, RecordData, TrainedData
from launcher.train.build import logger
from launcher.train.composed import Trainer
from launcher.train.run_summary import end_lines, is_in_sweep, log_lines

LESS_MEMORY = (
    "Less memory is needed with trainer.activation_checkpointing=full, with strategy=fsdp on more"
    " ranks{auto}."
)
SMALLER = ", or with trainer.micro_batch_size=auto"
UNUSED_PARAMETERS = (
    "Set strategy.find_unused_parameters=true, or let the loss depend on each parameter."
)


class AttemptLog:
    """Keeps run.json up to date.

    Args:
        config: the configuration.
        folder: the run's folder.
        on_begin: called on rank 0 once the attempt has begun.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        on_begin: Callable[[], None],
    ):
        self.config = config
        self.folder = folder
        self.on_begin = on_begin
        self.ranks = Ranks.from_env()
        self.lock = RunLock(folder, sleep=_sleep, on_lost=give_up) if self.ranks.is_main else None
        self.record: RunRecord | None = None
        """Record of the attempt, written by rank 0 while it holds the lock."""
        self.launched = launch_time()
        self.has_begun = False
        self._is_restored = False
        self.trainer: Trainer | None = None
        self.code: Mapping[str, Any] | None = None
        self.machine: str | None = None
        self.data_files: str | None = None
        self._await_files: Callable[[], None] | None = None
        self._writing, self._has_ended = threading.Lock(), False

    # ------------------------------------------------------------------------------------ its begin
    def take(self, trainer: Trainer, code: Mapping[str, Any], machine: str) -> None:
        """Lock the run for a trainer.

        Args:
            trainer: trains it.
            code: the current git state and versions, from `provenance.code_state`.
            machine: from `provenance.describe_machine`.
        """
        number = on_main(self._acquire)
        self.trainer = trainer
        self.code, self.machine = code, machine
        trainer.context.attempt = broadcast(number)
        if self.lock is not None:
            trainer.context.check_lock = self.lock.check

    def _acquire(self) -> int:
        assert self.lock is not None
        self.lock.acquire()
        with self.folder.being_read():
            self.record = RunRecord(self.folder, check_lock=self.lock.check)
        return self.record.next_number

    def changes_since(self, checkpoint: Path, ignored: Collection[str]) -> list[str]:
        """List what may change the numbers since a checkpoint."""
        assert self.code is not None
        sources = digest_imported_sources()
        return changes_since(checkpoint, self.config.of_the_run, self.code, sources, ignored)

    def begin(self) -> None:
        """Write that the attempt has begun. All ranks call it."""
        on_main(lambda: self._begin(self.trainer))
        self.has_begun = True
        self._is_restored = True
        setup_logging(self.folder.log_path(self.ranks.rank), self.ranks.rank)
        if self.ranks.is_main:
            is_new = self.trainer is None or self.trainer.step == 0
            assert self.lock is not None
            self._await_files = reproduction.keep(
                self.folder.path, Path(self.config.outputs), is_new, self.lock.is_held
            )
            self._report_nearest()
            self.on_begin()

    def _report_nearest(self) -> None:
        assert self.record is not None
        is_first = len(self.record.attempts) == 1 and not is_in_sweep()
        if is_first and (line := describe_nearest_run(self.folder.path, self.record.data)):
            logger.info("%s", line)

    def _begin(self, trainer: Trainer | None) -> None:
        """Begin the attempt of a restored trainer, or of None after a crash, in run.json."""
        # A forced exit may come meanwhile.
        with self._writing:
            if not self.has_begun:
                self._write_begin(trainer)
            self.has_begun = True

    def _write_begin(self, trainer: Trainer | None) -> None:
        assert self.record is not None
        if trainer is None:
            step, micro_batch_size = self.record.step, None
            strategy = str(self.config.plain["strategy"]["_target_"]).rpartition(".")[2]
        else:
            step, micro_batch_size = trainer.step, trainer.strategy.plan.micro_batch_size
            strategy = trainer.strategy.name
        try:
            with self.folder.explain_write_errors():
                self.folder.create()
                with hydra_record(self.config, self.folder) as command:
                    self.record.begin_attempt(
                        start_step=step,
                        max_steps=self.config.trainer.max_steps or 0,
                        world_size=self.ranks.world_size,
                        strategy=strategy,
                        launched=self.launched,
                        machine=self.machine,
                        micro_batch_size=micro_batch_size,
                        command=command,
                        data_files=self.data_files,
                        code=self.code,
                        **what_trains(trainer),
                    )
        except BaseException:
            # The folders may have existed before, with content.
            remove_empty(self.folder.hydra, self.folder.logs)
            raise

    # -------------------------------------------------------------------------------------- its end
    @contextmanager
    def record_end(self) -> Iterator[None]:
        """Record the attempt's end at the end of the context, and hold the lock until then."""
        try:
            with deadline.on_forced_exit(self._record_forced_exit):
                try:
                    with exits_are_errors():
                        yield
                except signals.SignalExit as stop:
                    self._record_stop(stop)
                    # The job must be requeued before SLURM kills it. Its next attempt writes them.
                    if stop.signum != signal.SIGINT and slurm_job_id() is not None:
                        self._await_files = None
                    raise
                except BaseException as error:
                    report_failure(error)
                    self._record_failure(error)
                    raise
        finally:
            if self._await_files is not None:
                self._await_files()
            if self.lock is not None:
                self.lock.release()

    def end(self, outcome: Outcome, step: int, **details: Any) -> None:
        """Write the outcome on rank 0."""
        # A forced exit may write it first. Then the main thread waits until it is written.
        with self._writing:
            if self.record is None or not self.has_begun or self._has_ended:
                return
            self._has_ended = True
            try:
                self.record.end_attempt(outcome, end_step=step, **details)
            except OSError as error:
                problem = f"{self.record.path} could not be written: {error.strerror}."
                if outcome in ("completed", "paused"):
                    then = " and trains nothing" if self._saves else " and trains the run again"
                    raise TrainingError(f"{problem} The same command writes it,{then}.") from error
                # The failed write must not hide why the attempt ended.
                logger.error("%s", problem)

    def _record_stop(self, stop: signals.SignalExit) -> None:
        if not (self.has_begun and self.record is not None):
            return
        name = signal.Signals(stop.signum).name
        # A step whose update was skipped is not saved.
        saved = self.folder.newest_step() if self._saves else None
        then = f"resumes from step {saved}" if saved else "starts at step 0 again"
        then = "resumes from there" if saved == self._step else then
        logger.info("Stopped by %s at step %d; the same command %s.", name, self._step, then)
        stop.is_reported = True
        self.end("preempted", self._step, signal=name, exit_code=int(stop.code or 0))
        log_lines(end_lines(self.record, self.config.outputs, sys.stdout))

    def _record_failure(self, error: BaseException) -> None:
        explained = explain(error)
        code = REJECTED if explained else 1
        if self.lock is None:
            if code == 1:
                logger.exception("Failed")
            return
        # The code cannot be imported.
        if explained and config_error(error) is None:
            error = ImportError(explained[0])
        error = unwrap_cause(error)
        # Use another rank's error, if this one only follows from it.
        reason = read_failure() or f"{type(error).__name__}: {error}"
        (reason,) = without_environment([reason], str(self.config.stored))
        if not self._is_begun_for(code):
            self._record_rejection(reason, code)
            return
        if code == 1:
            logger.error("Failed at step %d: %s", self._step, reason)
            if is_out_of_memory(reason):
                is_auto = self.config.trainer.micro_batch_size == AUTO
                logger.error(LESS_MEMORY.format(auto="" if is_auto else SMALLER))
            if "find_unused_parameters=True" in reason:
                logger.error(UNUSED_PARAMETERS)
        self.end("failed", self._step, exit_code=code, reason=reason[:500])

    def _record_rejection(self, reason: str, code: int) -> None:
        """Record why any launch was rejected on SLURM, where nobody reads the message."""
        if self.record is None or not (self.record.state == "queued" or is_restart()):
            return
        try:
            self.record.add_failure("failed", reason=reason, exit_code=code)
        # The failed write must not hide why the run was rejected.
        except OSError as error:
            logger.error("%s could not be written: %s.", self.record.path, error.strerror)

    def _is_begun_for(self, code: int) -> bool:
        """Return whether an error can be recorded. After a crash, begin now."""
        if self.has_begun or code == REJECTED:
            return self.has_begun
        try:
            if self.record is None:
                self._acquire()
            self._begin(None)
            setup_logging(self.folder.log_path(), 0)
        # The failed write must not hide the first error.
        except Exception as error:
            logger.error("%s could not be written: %s", self.folder.record_path, error)
        return self.has_begun

    def _record_forced_exit(self, signum: int, reason: str) -> None:
        if self.record is not None and self._is_begun_for(deadline.CODE):
            name = signal.Signals(signum).name if signum else None
            if self._step and self.folder.newest_step() == self._step:
                reason = f"its last step is saved. {reason}"
            self.end("failed", self._step, signal=name, exit_code=deadline.CODE, reason=reason)

    @property
    def _saves(self) -> bool:
        return self.trainer is None or saves(self.trainer)

    @property
    def _step(self) -> int:
        if self.trainer is not None and self._is_restored:
            return self.trainer.step
        return self.record.step if self.record is not None else 0


def what_trains(trainer: Trainer | None) -> dict[str, Any]:
    """Return what decides the numbers of the attempt's steps, for `RunRecord.begin_attempt`."""
    if trainer is None or trainer.context.settings is None:
        return {}
    context = trainer.context
    source = trainer.resumed_from
    changes = list[str]()
    is_shared = context.shared is not None and context.shared.source is not None
    # A shared start has compared them, and the steps before a fork are another run's.
    if source is not None and not is_shared and not trainer.is_fork:
        try:
            changes = environment_changes(source, context.texts)
        except OSError as error:
            changes = [f"its checkpoint has no {Path(error.filename).name}."]
    trained: TrainedData = {"changes": changes, "weights": context.initial_weights}
    return {"settings": context.settings, "trained": trained}


def saves(trainer: Trainer) -> bool:
    return any(isinstance(hook, CheckpointingHook) for hook in trainer.hooks)


@contextmanager
def hydra_record(config: RunConfig, folder: RunFolder) -> Iterator[RecordData]:
    """Write `.hydra/config.yaml` (resolved), `overrides.yaml` and `hydra.yaml`, for Hydra's tools.

    They appear at the end of the context, unless it raises. Its value is for run.json.
    """
    texts = {"config.yaml": config.stored_yaml}
    if config.hydra is not None:
        texts["overrides.yaml"] = OmegaConf.to_yaml(OmegaConf.create(config.overrides))
        texts["hydra.yaml"] = OmegaConf.to_yaml(OmegaConf.create({"hydra": config.hydra}))
    folder.hydra.mkdir(exist_ok=True)
    with ExitStack() as files:
        for name, text in texts.items():
            temporary = files.enter_context(replacing(folder.hydra / name))
            temporary.write_text(text)
            fsync_file(temporary)
        yield config.record


def _sleep(seconds: float) -> None:
    """Sleep until a signal, while another machine's lock is awaited."""
    time.sleep(seconds)
    signals.check()


def give_up(reason: str) -> None:
    """Exit at once, since another process has taken this run over, and write nothing more."""
    print(reason, file=sys.stderr, flush=True)
    deadline.end_process()
