"""Find what changes while a run trains and is stored by nobody, so that a resume would lose it.

The objects of a user are walked through before the first step, at the first save and at the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from launcher.optim.arguments import has_own_state_dict
from launcher.process.object_marks import Looks, Restored, address
from launcher.process.object_walk import is_of_launcher
from launcher.resume.trainer import Resumable, name_by_class
from launcher.rundir.record_format import UnstoredData
from launcher.strategies.weights import EXTRA, unwrap

MAX_LOOKS = 3
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
        self.of_others: list[str] = []
        """Losses that other ranks and workers have found."""

    def begin(self, trainer: Resumable) -> None:
        """Look before the first step, once everything is restored."""
        restored = stored_in_model(trainer)
        self.looks.look(roots(trainer), restored, trainer.state.epoch)
        loader = trainer.data_loader
        if not is_of_launcher(loader) and getattr(loader, "num_workers", None):
            trainer.logger.info(NO_WORKERS)

    def look(
        self, trainer: Resumable, tensors: Mapping[str, torch.Tensor], hooks: Mapping[str, object]
    ) -> list[str]:
        """Look at a save, and return what is lost and was not reported before, as texts.

        Args:
            trainer: the trainer.
            tensors: what the checkpoint has.
            hooks: the stored state of each hook, by its name.
        """
        lost: list[str] = []
        if 0 < self.looks.count < MAX_LOOKS:
            restored = restored_by(trainer, tensors, hooks)
            changes = self.looks.look(roots(trainer), restored, trainer.state.epoch)
            lost = list(map(str, changes))
        return lost + self.add(getattr(trainer.source, "lost_in_workers", ()))

    def data(self) -> UnstoredData:
        """Return the entry of run.json."""
        return {
            "lost": [*map(str, self.looks.lost.values()), *self.of_others],
            "changed": sorted(self.looks.changed),
            "is_cut": self.looks.is_cut,
        }

    def add(self, texts: Iterable[str]) -> list[str]:
        """Add what other processes have found, and return what is new."""
        known = {path_of(text) for text in self.data()["lost"]}
        new = list({path_of(text): text for text in texts if path_of(text) not in known}.values())
        self.of_others += new
        return new


def path_of(text: str) -> str:
    return text.partition(" ")[0]


def roots(trainer: Resumable) -> dict[str, object]:
    """Return the objects of a user, each by the key of the configuration that names it."""
    loader: Any = trainer.data_loader
    found: dict[str, object] = {}
    if is_of_launcher(loader):
        data = trainer.context.data
        found["data"] = None if is_of_launcher(data) else data
        found["data.dataset"] = getattr(loader, "dataset", None)
        found["data.collate_fn"] = getattr(loader, "collate", None)
    else:
        found["data_loader"] = loader
    found |= {"model": unwrap(trainer.model), "optimizer": trainer.optimizer}
    found["scheduler"] = trainer.lr_scheduler
    for name, hook in name_by_class(trainer.hooks):
        if not is_of_launcher(hook):
            found[f"hooks.{name}"] = hook
    found["trainer"] = trainer.own_attributes()
    return {name: part for name, part in found.items() if part is not None}


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
    if has_own_state_dict(trainer.optimizer):
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
