"""One process, one device."""

from collections.abc import Callable

import torch
from torch import nn

from launcher.device import get_device
from launcher.distributed import Ranks
from launcher.errors import ConfigError
from launcher.precision import Precision
from launcher.state import StepPlan
from launcher.strategies.base import BuildOptimizer
from launcher.strategies.native import NativeStrategy
from launcher.strategies.weights import initialise


class NoStrategy(NativeStrategy):
    """The model as it is, on this process's device."""

    name = "none"

    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        self.ranks = Ranks.from_env()
        if self.ranks.world_size > 1:
            raise ConfigError(
                f"strategy=none: {self.ranks.world_size} ranks were started, and it uses one; take strategy=ddp or "
                "fsdp, or dispatch.nproc=1."
            )
        self.plan, self.precision = plan, precision
        self.device = get_device(self.ranks.local_rank, device)
        precision.setup(self.device)
        return self.device

    def prepare(
        self, build_model: Callable[[], nn.Module], build_optimizer: BuildOptimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        with self.init_context():
            model = build_model()
        initialise(model, self.device)
        self.attach(model, build_optimizer(model), self.precision.scaler(self.device))
        return self.model, self.optimizer
