"""Find what changes while a run trains and is stored by nobody, so that a resume would lose it.

The objects of a user are walked through before the first step, at the first save and at the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from launcher.optim.arguments import has_own_state_dict
from launcher.optim.own_optimizers import OwnOptimizers
from launcher.process.object_marks import MAX_LOOKS, Looks, Restored, address
from launcher.process.object_walk import is_of_launcher
from launcher.resume.trainer import Resumable, name_by_class
from launcher.rundir.record_format import UnstoredData
from launcher.strategies.weights import EXTRA, unwrap

MAX_PATHS = 5
PAGE = "docs/reproducibility.md"
NO_WORKERS = (
    "What a dataset or a collate function changes in the workers of this data loader is not looked"
    " at; job=resume_check finds out whether a resume loses it."
)


class Unstored:
    """Looks at the objects of a trainer, and reports what a resume would lose."""

    def __init__(self) -> None:
        self.looks = Looks()

    def begin(self, trainer: Resumable) -> None:
        """Look before the first step, once everything is restored."""
        self.looks.look(roots(trainer), stored_in_model(trainer), trainer.state.epoch)
        loader = trainer.data_loader
        if not is_of_launcher(loader) and getattr(loader, "num_workers", None):
            trainer.logger.info(NO_WORKERS)

    def look(
        self, trainer: Resumable, tensors: Mapping[str, torch.Tensor], hooks: Mapping[str, object]
    ) -> dict[str, str]:
        """Look at a save, and return what is lost and was not reported before, by path.

        Args:
            trainer: the trainer.
            tensors: what the checkpoint has.
            hooks: the stored state of each hook, by its name.
        """
        lost: dict[str, str] = {}
        if 0 < self.looks.count < MAX_LOOKS:
            restored = restored_by(trainer, tensors, hooks)
            lost = self.looks.look(roots(trainer), restored, trainer.state.epoch)
        return lost | self.add(getattr(trainer.source, "lost_in_workers", {}))

    def data(self) -> UnstoredData:
        """Return the entry of run.json."""
        looks = self.looks
        lost = list(looks.lost.values())
        changed = sorted(looks.changed)
        return {"lost": lost, "changed": changed, "is_cut": looks.is_cut}

    def add(self, lost: Mapping[str, str]) -> dict[str, str]:
        """Add what other processes have found, and return what is new."""
        new = {path: text for path, text in lost.items() if path not in self.looks.lost}
        self.looks.lost |= new
        return new


def roots(trainer: Resumable) -> dict[str, object]:
    """Return the objects of a user, each by the key of the configuration that names it."""
    loader = trainer.data_loader
    data: dict[str, object] = {"data_loader": loader}
    if is_of_launcher(loader):
        data = {"data": trainer.context.data}
        data["data.dataset"] = getattr(loader, "dataset", None)
        data["data.collate_fn"] = getattr(loader, "collate", None)
    names = trainer.context.hook_names
    hooks = {names.get(id(h), f"hooks.{name}"): h for name, h in name_by_class(trainer.hooks)}
    return {
        **data,
        "model": unwrap(trainer.model),
        "optimizer": trainer.optimizer,
        "scheduler": trainer.lr_scheduler,
        **hooks,
        "trainer": trainer.own_attributes(),
    }


def restored_by(
    trainer: Resumable, tensors: Mapping[str, torch.Tensor], hooks: Mapping[str, object]
) -> Restored:
    """Ask what a resume restores of those who restore it."""
    restored = stored_in_model(trainer)
    source: Any = trainer.source
    if hasattr(source, "add_restored"):
        source.add_restored(restored)
    elif hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
        restored.add_state(source, source.state_dict())
    restored.memory = {address(tensor) for tensor in tensors.values()} - {0}
    if isinstance(trainer.optimizer, OwnOptimizers):
        trainer.optimizer.add_restored(restored)
    elif has_own_state_dict(trainer.optimizer):
        restored.add_state(trainer.optimizer, trainer.optimizer.state_dict())
    if trainer.lr_scheduler is not None:
        restored.add_state(trainer.lr_scheduler, trainer.lr_scheduler.state_dict())
    for name, hook in name_by_class(trainer.hooks):
        if name in hooks:
            restored.add_state(hook, hooks[name])
    return restored


def stored_in_model(trainer: Resumable) -> Restored:
    """Return what the model's own `state_dict()` has."""
    restored = Restored()
    model = unwrap(trainer.model)
    restored.objects.update(map(id, model.parameters()))
    modules = dict(model.named_modules(remove_duplicate=False))
    for full, value in model.state_dict(keep_vars=True).items():
        path, _, name = full.rpartition(".")
        restored.attributes.add((id(modules.get(path)), name))
        if isinstance(value, torch.Tensor):
            restored.objects.add(id(value))
        elif name == EXTRA:
            restored.add_state(modules[path], value)
    return restored


def message(lost: Sequence[str]) -> str:
    """Return the warning that names what a resume would lose."""
    shown = ", ".join(lost[:MAX_PATHS])
    if len(lost) > MAX_PATHS:
        shown += f" and {len(lost) - MAX_PATHS} more"
    return (
        f"After a resume these would start over: {shown}. Give the class state_dict and"
        " load_state_dict, or name it in not_state if no number depends on it"
        f" ({PAGE}). job=resume_check finds out."
    )
