"""Chooses the checkpoint that a run resumes from, the same on all ranks, and loads it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from launcher.checkpoint.find import (
    damaged,
    find_checkpoint,
    has_checkpoints,
    has_no_checkpoint,
)
from launcher.checkpoint.manifest import CorruptCheckpoint, is_small
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import TrainerView
from launcher.hooks.forking import KEY, Fork, own_position
from launcher.hooks.shared import SharedStart, States, with_states
from launcher.process import ranks
from launcher.process.rng import fresh_rng
from launcher.rundir.provenance import is_restart
from launcher.rundir.record_format import stored_record

T = TypeVar("T")


class Choice(NamedTuple):
    """The checkpoint that an attempt resumes from, as rank 0 chose it."""

    path: str | None = None
    """Checkpoint to load, or None to begin at step 0."""
    is_named: bool = False
    """The user named this checkpoint, so no other one is loaded."""
    is_fork: bool = False
    is_shared: bool = False
    states: States = {}
    """The states of hooks that replace the stored ones."""


class CheckpointRestorer:
    """Finds and loads the checkpoint of one attempt.

    Args:
        load: see `launcher.hooks.checkpointing.CheckpointingHook`.
        fork: checkpoint from which the run starts if it has none of its own.
        shared: finds a run that has trained the first steps of this one.
        config: the run's resolved configuration, or None if it has none.
    """

    def __init__(
        self,
        store: CheckpointStore,
        load: str | int | Path | None,
        fork: Fork | None = None,
        config: str | None = None,
        shared: SharedStart | None = None,
    ):
        self.store, self.load, self.fork, self.config = store, load, fork, config
        self.shared = shared
        self.choice = Choice()

    @property
    def _key(self) -> str:
        """The name of the setting that chooses a checkpoint: a program has no configuration."""
        return "load" if self.config is None else "run.resume"

    @property
    def _another(self) -> str:
        return "another workspace" if self.config is None else "run.tag=<word>"

    def restore(self, trainer: TrainerView) -> Path | None:
        """Load the checkpoint that the run resumes from, and return it, or None at step 0."""
        checkpoint = self._agreed_choice(trainer)
        while checkpoint is not None and not self._restored(trainer, checkpoint):
            checkpoint = self._agreed_choice(trainer)
        if checkpoint is None:
            return None
        trainer.resumed_from = checkpoint
        if self.choice.is_shared:
            # It is `<name>/<id>/checkpoints/step-...`.
            shared = "New run. Shares steps 0 to %d with %s."
            trainer.logger.info(shared, trainer.step, checkpoint.parents[1].name)
            return checkpoint
        how = "Forked" if self.choice.is_fork else "Resuming"
        trainer.logger.info("%s from %s (step %d).", how, checkpoint, trainer.step)
        return checkpoint

    def abandon_later(self, trainer: TrainerView) -> None:
        """Set later checkpoints than a named one aside, once nothing can reject the attempt."""
        if not self.choice.is_named:
            return
        is_own = trainer.resumed_from is not None and trainer.resumed_from.parent == self.store.root
        self._agreed(
            trainer, lambda: self._abandon_later(trainer, trainer.step if is_own else None)
        )

    def _agreed_choice(self, trainer: TrainerView) -> Path | None:
        self.choice = self._agreed(trainer, lambda: self._choose_or_fork(trainer))
        return None if self.choice.path is None else Path(self.choice.path)

    def _agreed(self, trainer: TrainerView, act: Callable[[], T]) -> T:
        """Let rank 0 call `act` for all ranks, which may see different contents of a folder."""
        result: tuple[Any, str | None] = (None, None)
        if trainer.strategy.ranks.is_main:
            try:
                result = (act(), None)
            except (ConfigError, CorruptCheckpoint) as error:
                result = (None, str(error))
            except OSError as error:
                path = error.filename or self.store.root
                result = (
                    None,
                    (
                        f"{'workspace' if self.config is None else 'run.dir'}="
                        f"'{trainer.workspace}': {path}: {error.strerror}; repair it or"
                        " move it away."
                    ),
                )
        value, problem = ranks.broadcast(result)
        if problem is not None:
            raise ConfigError(problem)
        found: T = value
        return found

    def _restored(self, trainer: TrainerView, path: Path) -> bool:
        """Load a checkpoint and verify the checksum of each tensor.

        If any rank finds damage, all ranks take the next older checkpoint, which overwrites
        everything that was loaded.
        """
        problem = misfit = None
        try:
            self._restore(trainer, StoredCheckpoint(path))
        except CorruptCheckpoint as error:
            problem = error.problem
        except TrainingError as error:
            misfit = str(error)
        outcomes = ranks.all_gather((problem, misfit))
        key, value = self._key, str(self.load)
        if self.choice.is_fork and self.fork is not None:
            key, value = KEY, self.fork.source
        if misfits := [text for _, text in outcomes if text is not None]:
            raise ConfigError(
                f"{key}={value}: {path} does not fit this configuration: {misfits[0]}"
                f" {self._advice(path)}"
            )
        problems = [text for text, _ in outcomes if text is not None]
        if not problems:
            return True
        damage = CorruptCheckpoint(path.name, problems[0])
        if self.choice.is_shared:
            raise TrainingError(f"{path} has changed while it was read: {damage.problem}.")
        if self.choice.is_named:
            raise damaged(key, value, path, damage)
        if trainer.strategy.ranks.is_main:
            self.store.set_aside(path, damage)
        return False

    def _advice(self, path: Path) -> str:
        if self.config is not None and not self._is_same(StoredCheckpoint(path)):
            return (
                "Use the configuration that it was trained with, or start another run, perhaps from"
                " its weights (run.init_from=...)."
            )
        return (
            "The code may have changed since; or a part has changed its own state in training, and"
            " must restore it in _load_from_state_dict (a module) or load_state_dict (an"
            " optimizer)."
        )

    def _choose_or_fork(self, trainer: TrainerView) -> Choice:
        choice = self._choose(trainer)
        if choice.path is None and self.fork is not None:
            source = str(self.fork.checkpoint())
            return Choice(source, is_named=True, is_fork=True)
        if choice.path is None and self.shared is not None:
            found = self.shared.find(trainer)
            if found is not None:
                return Choice(str(found[0]), is_shared=True, states=found[1])
        return choice

    def _choose(self, trainer: TrainerView) -> Choice:
        self.store.recover()
        if self.load is None:
            return Choice()
        # `load` is for the first start of a SLURM job.
        if is_restart() and (resumed := self._newest()) is not None:
            return resumed
        if self.load == "never":
            if self.store.steps():
                raise has_checkpoints(self.store, self._key, self._another)
            return Choice()
        if self.load not in ("latest", "auto", "must"):
            path = find_checkpoint(self.store.root, self.load, self._key, hashes=False)
            return Choice(str(path), is_named=True)
        newest = self._newest()
        if newest is None and self.load == "must":
            raise has_no_checkpoint(self.store, self._key)
        if newest is None:
            self._reject_new_start(trainer)
            self._report_trainloop(trainer)
            return Choice()
        return newest

    def _newest(self) -> Choice | None:
        try:
            # The tensors are verified as they are loaded.
            newest = self.store.newest_valid(is_small)
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(
                f"This run has no valid checkpoint: {error}. Nothing was deleted. Restore one, or"
                f" use {self._another} to train it again as another run."
            ) from None
        return Choice(str(newest[0])) if newest else None

    def _reject_new_start(self, trainer: TrainerView) -> None:
        """Reject a start at step 0 of a run that has saved."""
        if step := stored_record(trainer.workspace or Path()).get("checkpoint"):
            raise ConfigError(
                f"{self._key}={self.load}: run.json says that step {step} was saved, but"
                f" {self.store.root} has no checkpoint. Put the checkpoints back; or start at step"
                f" 0 with {self._key}=never, or as another run with {self._another}."
            )

    def _report_trainloop(self, trainer: TrainerView) -> None:
        names = [path.parent.name for path in self.store.root.glob("*/training_state.pt")]
        if (
            theirs := sorted(int(name) for name in names if name.isdecimal())
        ) and trainer.step == 0:
            trainer.logger.warning(
                "%s has checkpoints of trainloop, up to step %d, which are not read: training"
                " starts at step 0. To train on from one, pass its files to"
                " `trainer.load_state_dict` in `on_restore`.",
                self.store.root,
                theirs[-1],
            )

    def _abandon_later(self, trainer: TrainerView, step: int | None) -> None:
        """Set aside the checkpoints after `step`, or all if the run resumes from another folder."""
        how = "Started from step %d: a later checkpoint is kept as %s."
        if step is None:
            how = (
                "Resumed at step %d from another folder: the checkpoint of this run is kept as %s."
            )
        for name in self.store.abandon(-1 if step is None else step):
            trainer.logger.warning(how, trainer.step, name)

    def _is_same(self, stored: StoredCheckpoint) -> bool:
        """Return whether a checkpoint's configuration trains the same numbers as the current."""
        file = stored.path / "config.yaml"
        if self.config is None or not file.exists():
            return True
        from launcher.config.lookup import is_same
        from launcher.config.run_config import stored_tree

        return is_same(stored_tree(file), stored_tree(self.config))

    def _restore(self, trainer: TrainerView, stored: StoredCheckpoint) -> None:
        expected, actual = trainer.strategy.checkpoint_format, stored.manifest.checkpoint_format
        if expected != actual:
            raise ConfigError(
                f"strategy={trainer.strategy.name}: {stored.path} was written by"
                f" strategy={stored.manifest.strategy} ({actual}), which it cannot read; resume"
                " under that strategy, or run job=export under it and start a new run with"
                " run.init_from=<model.safetensors>."
            )
        trainer.is_fork = self.choice.is_fork
        mine = stored.rank_state(trainer.strategy.ranks.rank)
        same_ranks = stored.manifest.world_size == trainer.strategy.ranks.world_size
        if self.choice.is_fork and self.fork is not None:
            self.fork.restore(trainer, stored, mine if same_ranks else None)
        else:
            state = stored.meta["training_state"]
            trainer.load_training_state(
                state | {"data_loader": own_position(state, mine if same_ranks else None)}
            )
            trainer.strategy.load(stored)
            trainer.restore_schedule(state)
        if trainer.state.stop_reason is not None and (
            self.choice.is_fork or not self._is_same(stored)
        ):
            trainer.state.stop_reason = None
        for hook in trainer.hooks:
            hook.load_tensors(trainer, stored)
        rank_state = mine or stored.rank_state(0) or {}
        trainer.restored = {
            "training_state": stored.meta["training_state"],
            "hooks": with_states(rank_state.get("hooks", {}), self.choice.states),
        }
        if mine is None:
            trainer.resumed_rng = fresh_rng(trainer.step)
            return
        trainer.resumed_rng = mine["rng"]
