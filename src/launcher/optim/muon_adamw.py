"""Muon and AdamW as one optimizer."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class MuonAdamW(Optimizer):
    """`torch.optim.Muon` and `torch.optim.AdamW` as one optimizer.

    Its `param_groups` are the groups of both, as the same dictionary objects, and all three share
    one `state`. So schedulers, gradient scalers, `state_dict` and code that saves state by
    parameter see an ordinary optimizer.

    Args:
        muon_groups: parameter groups of matrices. They may be empty.
        adamw_groups: the other parameter groups. They may be empty.
        muon, adamw: further arguments of the two optimizers.
    """

    def __init__(
        self,
        muon_groups: list[dict[str, Any]],
        adamw_groups: list[dict[str, Any]],
        muon: dict[str, Any],
        adamw: dict[str, Any],
    ):
        self._parts: list[Optimizer] = []
        if muon_groups:
            self._parts.append(torch.optim.Muon(muon_groups, **muon))
        if adamw_groups:
            self._parts.append(torch.optim.AdamW(adamw_groups, **adamw))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Make the parts work on this optimizer's groups and state."""
        first = 0
        for part in self._parts:
            last = first + len(part.param_groups)
            part.param_groups = self.param_groups[first:last]
            part.state = self.state
            first = last

    def __getstate__(self) -> dict[str, Any]:
        # This is for copy and pickle.
        return {**super().__getstate__(), "_parts": self._parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Share the state again at the end of `load_state_dict`, which has replaced groups and
        state."""
        super().__setstate__(state)
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise RuntimeError, since it is not known which of the two optimizers should get a new
        group.

        Raises:
            RuntimeError: after construction.
        """
        if len(self.param_groups) == sum(len(part.param_groups) for part in self._parts):
            raise RuntimeError("MuonAdamW does not support adding parameter groups.")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters. `closure`, if any, computes the loss once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss
