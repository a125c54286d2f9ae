"""Muon and AdamW as one optimizer."""

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer


class MuonAdamW(Optimizer):
    """`torch.optim.Muon` for groups of matrices and `torch.optim.AdamW` for the others, as one.

    Its `param_groups` are the groups of both, as the same dictionary objects, and both share one
    `state`. So schedulers, gradient scalers, `state_dict` and code that saves state by parameter
    see an ordinary optimizer.
    """

    def __init__(self, optimizers: Iterable[Optimizer]):
        self.optimizers = list(optimizers)
        super().__init__([group for part in self.optimizers for group in part.param_groups], {})
        for part in self.optimizers:
            self.state.update(part.state)
        self._share()

    def _share(self) -> None:
        first = 0
        for part in self.optimizers:
            last = first + len(part.param_groups)
            # As at the end of `load_state_dict`.
            part.__setstate__({"state": self.state, "param_groups": self.param_groups[first:last]})
            first = last

    def __getstate__(self) -> dict[str, Any]:
        # For copies.
        return {**super().__getstate__(), "optimizers": self.optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Share the state again at the end of `load_state_dict`, which has replaced it."""
        super().__setstate__(state)
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise RuntimeError, since it is not known which optimizer should get a new group."""
        if len(self.param_groups) == sum(len(part.param_groups) for part in self.optimizers):
            raise RuntimeError("MuonAdamW does not support adding parameter groups.")
        super().add_param_group(param_group)

    def step(self) -> None:  # type: ignore[override]
        for part in self.optimizers:
            part.step()
