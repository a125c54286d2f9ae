"""Chooses the checkpoint that a run resumes from, the same on all ranks, and loads it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from launcher.checkpoint.find_checkpoint import (
    damage_error,
    find_checkpoint,
    has_checkpoints,
    has_no_checkpoint,
)
from launcher.checkpoint.manifest import CorruptCheckpoint, is_small
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError, TrainingError
from launcher.process import ranks
from launcher.process.rng import fresh_rng
from launcher.resume.forking import KEY, Fork, own_position
from launcher.resume.restored_settings import (
    Change,
    keys_to_set,
    set_groups,
    set_loss_scale,
    settings_as_built,
)
from launcher.resume.shared import SharedStart, States, with_states
from launcher.resume.trainer import Resumable
from launcher.rundir.provenance import is_restart
from launcher.rundir.run_on_disk import RunOnDisk

T = TypeVar("T")


class ResumeChoice(NamedTuple):
    """The checkpoint that an attempt resumes from, as rank 0 chose it."""

    path: str | None = None
    """Checkpoint to load, or None to begin at step 0."""
    is_named: bool = False
    """The user named this checkpoint, so no other one is loaded."""
    is_fork: bool = False
    is_shared: bool = False
    states: States = {}
    """The states of hooks that replace the stored ones."""


@dataclass
class CheckpointRestorer:
    """Finds and loads the checkpoint of one attempt.

    Args:
        load: see `launcher.hooks.checkpointing.CheckpointingHook`.
        fork: checkpoint from which the run starts if it has none of its own.
        shared: finds a run that has trained the first steps of this one.
        config: the run's resolved configuration, or None if it has none.
    """

    store: CheckpointStore
    load: str | int | Path | None
    fork: Fork | None
    config: str | None
    shared: SharedStart | None

    def __post_init__(self) -> None:
        self.choice = ResumeChoice()
        # In messages: a setting that chooses a checkpoint, and a way to train another run.
        self._key = "run.resume"
        self._another = "run.tag=<word>"
        if self.config is None:
            self._key = "load"
            self._another = "another workspace"

    def restore(self, trainer: Resumable) -> Path | None:
        """Load the checkpoint that the run resumes from, and return it, or None at step 0."""
        while (checkpoint := self._agree_on_choice(trainer)) is not None:
            if self._try_restore(trainer, checkpoint):
                break
        if checkpoint is None:
            return None
        trainer.resumed_from = checkpoint
        if self.choice.is_shared:
            # The checkpoint is `<name>/<id>/checkpoints/step-...`.
            run = checkpoint.parents[1].name
            trainer.logger.info("New run. Shares steps 0 to %d with %s.", trainer.step, run)
        else:
            how = "Forked" if self.choice.is_fork else "Resuming"
            trainer.logger.info("%s from %s (step %d).", how, checkpoint, trainer.step)
        return checkpoint

    def abandon_later(self, trainer: Resumable) -> None:
        """Set later checkpoints than a named one aside, once nothing can reject the attempt."""
        if self.choice.is_named:
            self._agree(trainer, lambda: self._abandon_later(trainer))

    def take_over(self, trainer: Resumable) -> None:
        """Make the steps that this run shares its own, once nothing can reject the attempt."""
        is_taken = self.choice.is_shared and trainer.strategy.ranks.is_main
        if is_taken and self.shared is not None and trainer.workspace is not None:
            self.shared.take_over(trainer.workspace, self.store)

    def _agree_on_choice(self, trainer: Resumable) -> Path | None:
        self.choice = self._agree(trainer, lambda: self._choose_or_fork(trainer))
        return None if self.choice.path is None else Path(self.choice.path)

    def _agree(self, trainer: Resumable, act: Callable[[], T]) -> T:
        """Let rank 0 call `act` for all ranks, which may see different contents of a folder."""
        value: Any = None
        problem: str | None = None
        if trainer.strategy.ranks.is_main:
            try:
                value = act()
            except (ConfigError, CorruptCheckpoint) as error:
                problem = str(error)
            except OSError as error:
                key = "workspace" if self.config is None else "run.dir"
                problem = (
                    f"{key}='{trainer.workspace}': {error.filename or self.store.root}:"
                    f" {error.strerror}; repair it or move it away."
                )
        value, problem = ranks.broadcast((value, problem))
        if problem is not None:
            raise ConfigError(problem)
        result: T = value
        return result

    def _try_restore(self, trainer: Resumable, path: Path) -> bool:
        """Load a checkpoint and verify the checksum of each tensor.

        If any rank finds damage, all ranks take the next older checkpoint, which overwrites
        everything that was loaded.
        """
        problem = None
        misfit = None
        try:
            self._restore(trainer, StoredCheckpoint(path))
        except CorruptCheckpoint as error:
            problem = error.problem
        except TrainingError as error:
            misfit = str(error)
        outcomes = ranks.all_gather((problem, misfit))
        key = self._key
        value = str(self.load)
        if self.choice.is_fork and self.fork is not None:
            key = KEY
            value = self.fork.source
        misfit = next((text for _, text in outcomes if text is not None), None)
        if misfit is not None:
            raise ConfigError(
                f"{key}={value}: {path} does not fit this configuration: {misfit}"
                f" {self._advice(path)}"
            )
        problem = next((text for text, _ in outcomes if text is not None), None)
        if problem is None:
            return True
        damage = CorruptCheckpoint(path.name, problem)
        if self.choice.is_shared:
            raise TrainingError(f"{path} has changed while it was read: {problem}.")
        if self.choice.is_named:
            raise damage_error(key, value, path, damage)
        if trainer.strategy.ranks.is_main:
            self.store.set_aside(path, damage)
        return False

    def _advice(self, path: Path) -> str:
        if not self._is_same(StoredCheckpoint(path)):
            return (
                "Use the configuration that it was trained with, or start another run, perhaps from"
                " its weights (run.init_from=...)."
            )
        return (
            "The code may have changed since; or a part has changed its own state in training, and"
            " must restore it in _load_from_state_dict (a module) or load_state_dict (an"
            " optimizer)."
        )

    def _choose_or_fork(self, trainer: Resumable) -> ResumeChoice:
        choice = self._choose(trainer)
        if choice.path is not None:
            return choice
        if self.fork is not None:
            source = str(self.fork.checkpoint())
            return ResumeChoice(source, is_named=True, is_fork=True)
        shared_start = None if self.shared is None else self.shared.find(trainer)
        if shared_start is None:
            return choice
        return ResumeChoice(str(shared_start[0]), is_shared=True, states=shared_start[1])

    def _choose(self, trainer: Resumable) -> ResumeChoice:
        self.store.recover()
        if self.load is None:
            return ResumeChoice()
        # `load` is for the first start of a SLURM job.
        if is_restart() and (resumed := self._newest()) is not None:
            return resumed
        if self.load == "never":
            if self.store.steps():
                raise has_checkpoints(self.store, self._key, self._another)
            return ResumeChoice()
        if self.load not in ("latest", "auto", "must"):
            path = find_checkpoint(self.store.root, self.load, self._key, hashes=False)
            return ResumeChoice(str(path), is_named=True)
        newest = self._newest()
        if newest is not None:
            return newest
        if self.load == "must":
            raise has_no_checkpoint(self.store, self._key)
        self._reject_new_start(trainer)
        return ResumeChoice()

    def _newest(self) -> ResumeChoice | None:
        try:
            # The tensors are verified as they are loaded.
            newest = self.store.newest_valid(is_small)
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(
                f"This run has no valid checkpoint: {error}. Nothing was deleted. Restore one, or"
                f" use {self._another} to train it again as another run."
            ) from None
        return ResumeChoice(str(newest[0])) if newest else None

    def _reject_new_start(self, trainer: Resumable) -> None:
        """Reject a start at step 0 of a run that has saved."""
        step = RunOnDisk.read(trainer.workspace or Path()).record.get("checkpoint")
        if step:
            raise ConfigError(
                f"{self._key}={self.load}: run.json says that step {step} was saved, but"
                f" {self.store.root} has no checkpoint. Put the checkpoints back; or start at step"
                f" 0 with {self._key}=never, or as another run with {self._another}."
            )

    def _abandon_later(self, trainer: Resumable) -> None:
        """Set aside later checkpoints, or all if the run resumes from another folder."""
        source = trainer.resumed_from
        if source is not None and source.parent == self.store.root:
            step = trainer.step
            text = "Started from step %d: a later checkpoint is kept as %s."
        else:
            step = -1
            text = (
                "Resumed at step %d from another folder: the checkpoint of this run is kept as %s."
            )
        for name in self.store.abandon(step):
            trainer.logger.warning(text, trainer.step, name)

    def _is_same(self, stored: StoredCheckpoint) -> bool:
        """Return whether a checkpoint's configuration trains the same numbers as the current."""
        file = stored.path / "config.yaml"
        if self.config is None or not file.exists():
            return True
        from launcher.config.identity.lookup import is_same
        from launcher.config.run_config import read_tree

        return is_same(read_tree(file), read_tree(self.config))

    def _restore(self, trainer: Resumable, stored: StoredCheckpoint) -> None:
        expected = trainer.strategy.checkpoint_format
        actual = stored.manifest.checkpoint_format
        if expected != actual:
            raise ConfigError(
                f"strategy={trainer.strategy.name}: {stored.path} was written by"
                f" strategy={stored.manifest.strategy} ({actual}), which it cannot read; resume"
                " under that strategy, or run job=export under it and start a new run with"
                " run.init_from=<model.safetensors>."
            )
        is_fork = self.choice.is_fork
        trainer.is_fork = is_fork
        mine = stored.rank_state(trainer.strategy.ranks.rank)
        same_ranks = stored.manifest.world_size == trainer.strategy.ranks.world_size
        own = mine if same_ranks else None
        if is_fork and self.fork is not None:
            self.fork.restore(trainer, stored, own)
        else:
            self._load(trainer, stored, own)
        if trainer.state.stop_reason is not None and (is_fork or not self._is_same(stored)):
            trainer.state.stop_reason = None
        for hook in trainer.hooks:
            hook.load_tensors(trainer, stored)
        rank_state = mine or stored.rank_state(0) or {}
        trainer.restored = {
            "training_state": stored.meta["training_state"],
            "hooks": with_states(rank_state.get("hooks", {}), self.choice.states),
            "rng": fresh_rng(trainer.step) if mine is None else mine["rng"],
        }

    def _load(
        self, trainer: Resumable, stored: StoredCheckpoint, rank_state: dict[str, Any] | None
    ) -> None:
        """Load a checkpoint of the run; a changed setting of the optimizer is the current one."""
        state = stored.meta["training_state"]
        built = settings_as_built(trainer)
        trainer.load_training_state(state | {"data_loader": own_position(state, rank_state)})
        trainer.strategy.load(stored)
        change = Change.since(stored.path, self.config)
        set_loss_scale(trainer, change)
        keys = keys_to_set(trainer, built, change)
        has_schedule = None not in (state["lr_scheduler"], trainer.lr_scheduler)
        set_groups(trainer, built, keys, keeps_rates=has_schedule)
        trainer.restore_schedule(state, takes_rates="lr" in keys)
