"""Muon and AdamW as one optimizer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from launcher.optim.combined import CombinedOptimizer


class MuonAdamW(CombinedOptimizer):
    """`torch.optim.Muon` for groups of matrices and `torch.optim.AdamW` for the others, as one."""

    def __init__(
        self,
        muon_groups: list[dict[str, Any]],
        adamw_groups: list[dict[str, object]],
        muon: dict[str, Any],
        adamw: dict[str, Any],
    ):
        self._parts: list[Optimizer] = []
        if muon_groups:
            self._parts.append(torch.optim.Muon(muon_groups, **muon))
        if adamw_groups:
            self._parts.append(torch.optim.AdamW(adamw_groups, **adamw))
        self.combine()

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        return self._parts

    def __getstate__(self) -> dict[str, object]:
        # This is for copy and pickle.
        return {**super().__getstate__(), "_parts": self._parts}
