"""One process, one device."""

import torch

from launcher.errors import ConfigError
from launcher.optim.precision import Precision
from launcher.process.ranks import Ranks
from launcher.strategies.base import BuildModel, BuildOptimizer, ModelAndOptimizer
from launcher.strategies.native import NativeStrategy
from launcher.strategies.step import StepPlan


class NoStrategy(NativeStrategy):
    """The unchanged model on this process's device."""

    one_process = True
    name = "none"
    supports_lanes = True
    own_steps = True

    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        count = Ranks.from_env().world_size
        if count > 1:
            raise ConfigError(
                f"strategy=none: {count} ranks were started, and it uses one; use strategy=ddp or"
                " fsdp, or dispatch.nproc=1."
            )
        return super().setup(plan, precision, device)

    def prepare(
        self, build_model: BuildModel, build_optimizer: BuildOptimizer
    ) -> ModelAndOptimizer:
        model = self.make_model(build_model)
        self.attach(model, build_optimizer(model), self.precision.scaler(self.device))
        return self.model, self.optimizer
