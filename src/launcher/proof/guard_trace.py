"""The hook that traces one side of a comparison: also its initial weights, rates and modules."""

import json
import sys
from typing import Any

from safetensors.torch import save_file

from launcher.hooks.base import TrainerView
from launcher.optim.schedulers import needs_metric
from launcher.proof.diff import GRADIENTS, WEIGHTS
from launcher.proof.trace import TraceHook
from launcher.strategies.checksum import checksum
from launcher.strategies.weights import unwrap

RATES = "rates.json"
MODULES = "modules.json"


class GuardHook(TraceHook):
    """Appends lines as `TraceHook`, and writes the rates of all steps of the schedule at the end.

    Args:
        folder: must exist.
        keep: keep the gradients and the weights of this step, in `<folder>/rank-<r>-<kind>`.
            Default None: of none.
    """

    def __init__(self, folder: str, keep: int | None = None):
        super().__init__(folder)
        self.keep = keep

    def on_ready(self, trainer: TrainerView) -> None:
        super().on_ready(trainer)
        named = unwrap(trainer.model).named_parameters()
        self._write(trainer, {WEIGHTS: {name: int(checksum([p])) for name, p in named}})
        if self.keep == trainer.step:
            self._keep(trainer, WEIGHTS)

    def on_before_optimizer_step(self, trainer: TrainerView) -> None:
        super().on_before_optimizer_step(trainer)
        if self.keep == trainer.step:
            self._keep(trainer, GRADIENTS)

    def on_after_step(self, trainer: TrainerView) -> None:
        super().on_after_step(trainer)
        if self.keep == trainer.step:
            self._keep(trainer, WEIGHTS)

    def on_close(self, trainer: TrainerView) -> None:
        if not trainer.strategy.ranks.is_main:
            return
        (self.folder / RATES).write_text(json.dumps(rates_to_the_end(trainer)))
        modules = list(sys.modules.items())
        files = {name: getattr(module, "__file__", None) for name, module in modules}
        imported = {name: file for name, file in files.items() if isinstance(file, str)}
        (self.folder / MODULES).write_text(json.dumps(imported))

    def _keep(self, trainer: TrainerView, kind: str) -> None:
        tensors = {}
        for name, parameter in unwrap(trainer.model).named_parameters():
            value = parameter.grad if kind == GRADIENTS else parameter
            if value is not None:
                local = value.to_local() if hasattr(value, "to_local") else value
                tensors[name] = local.detach().cpu().clone().contiguous()
        save_file(tensors, self.folder / f"rank-{trainer.strategy.ranks.rank}-{kind}")


def rates_to_the_end(trainer: TrainerView) -> list[list[float]] | None:
    """Step the schedule to the end of the run; return the rates of the groups for each step.

    Training is over, so the schedule is not needed any more.

    Returns:
        None for a schedule that follows a metric, which has no rates without training.
    """
    scheduler: Any = trainer.lr_scheduler
    if scheduler is not None and needs_metric(scheduler):
        return None
    rates: list[list[float]] = []
    for _ in range(trainer.step, trainer.max_steps):
        rates.append([float(group["lr"]) for group in trainer.optimizer.param_groups])
        if scheduler is not None:
            scheduler.step()
    return rates
