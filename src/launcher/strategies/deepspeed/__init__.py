"""ZeRO's stages by DeepSpeed: its engine does backward, clip and step; schedule, hooks, loop and checkpoints stay ours.

DeepSpeed is imported here alone, and only once it is asked for: that takes seconds.
"""

import functools
import inspect
import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from launcher.errors import ConfigError
from launcher.optim.precision import Precision
from launcher.run import ranks
from launcher.strategies.base import NULL, BuildOptimizer, Saved, Snapshot
from launcher.strategies.deepspeed.config import KEY, complete, from_options, read_file
from launcher.strategies.deepspeed.process import check, start, tidy
from launcher.strategies.deepspeed.zero_pieces import Pieces
from launcher.strategies.native import MODEL, OPTIMIZER, NativeStrategy
from launcher.strategies.step import StepPlan, StepResult
from launcher.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

logger = logging.getLogger("launcher")
NOT_IN_PIECES = frozenset({"Adafactor", "Adagrad", "LBFGS", "Muon", "MuonAdamW", "SparseAdam"})
"""Optimizers whose update of a value depends on more than that value, or which DeepSpeed makes anew in its own way."""
TOLD_AS_INFO = ("memory_breakdown", "dump_state", "flops_profiler", "comms_logger")
"""Keys of its configuration whose output is in log messages of no importance."""
SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""Of the state of DeepSpeed's loss scaler, what moves."""


class DeepSpeedStrategy(NativeStrategy):
    """ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) over data-parallel ranks.

    Args:
        zero_stage: 1: optimizer state and fp32 masters are in pieces over the ranks; 2: gradients too; 3: parameters
            too, gathered for their module's turn; 0: nothing, all is averaged as by ddp.
        offload_optimizer: masters, moments and the optimizer's step are on the host; from stage 1.
        offload_param: pieces of the parameters are on the host until they are gathered; stage 3.
        overlap_comm: gradients are exchanged while the backward pass goes on.
        contiguous_gradients: gradients are copied into one buffer as they come.
        reduce_bucket_size: values that are exchanged at once.
        sub_group_size: stage 3: values that are updated at once.
        stage3_prefetch_bucket_size: values that are gathered ahead.
        stage3_param_persistence_threshold: parameters with fewer values stay gathered.
        stage3_max_live_parameters: values that are gathered at the same time, at most.
        stage3_max_reuse_distance: a parameter that is needed again within so many values is kept.
        stage3_gather_16bit_weights_on_model_save: of DeepSpeed's own way to save, which is not used here.
        loss_scale: under precision=fp16: a fixed scale; 0: the scale is found, and followed.
        loss_scale_window: steps without overflow until the scale doubles.
        initial_scale_power: the first scale is 2 to this.
        hysteresis: overflows before the scale is halved.
        min_loss_scale: it does not fall below.
        wall_clock_breakdown: DeepSpeed logs the times of each part of a step.
        config_file: a DeepSpeed configuration in JSON, in place of all the options above.
        timeout: seconds that a rank waits for the others before it fails.
    """

    name = "deepspeed"
    checkpoint_format = "deepspeed"
    forward_is_collective = True
    compiles_whole = False

    def __init__(
        self,
        zero_stage: Literal[0, 1, 2, 3] = 2,
        offload_optimizer: bool = False,
        offload_param: bool = False,
        overlap_comm: bool = True,
        contiguous_gradients: bool = True,
        reduce_bucket_size: PositiveInt = 500_000_000,
        sub_group_size: PositiveInt = 1_000_000_000,
        stage3_prefetch_bucket_size: NonNegativeInt = 50_000_000,
        stage3_param_persistence_threshold: NonNegativeInt = 100_000,
        stage3_max_live_parameters: NonNegativeInt = 1_000_000_000,
        stage3_max_reuse_distance: NonNegativeInt = 1_000_000_000,
        stage3_gather_16bit_weights_on_model_save: bool = True,
        loss_scale: NonNegativeFloat = 0.0,
        loss_scale_window: PositiveInt = 1000,
        initial_scale_power: NonNegativeInt = 16,
        hysteresis: PositiveInt = 2,
        min_loss_scale: PositiveFloat = 1.0,
        wall_clock_breakdown: bool = False,
        config_file: str | None = None,
        timeout: PositiveFloat = 1800.0,
    ):
        given = locals()
        self.options = {key: given[key] for key in DEFAULTS}
        self.file = Path(config_file) if config_file is not None else None
        self.timeout = timeout

    # ---------------------------------------------------------------------------------------------------- set-up
    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        if find_spec("deepspeed") is None:
            raise ConfigError(
                "strategy=deepspeed: needs the package deepspeed; pip install 'torch-launcher[deepspeed]'."
            )
        super().setup(plan, precision, device)
        self.config = complete(self.given(), plan, precision, self.ranks.world_size, self.file)
        self.stage = self.config.get("zero_optimization", {}).get("stage", 0)
        self._refuse(plan, precision)
        ranks.join(self.device, self.timeout)
        start(self.device, self.ranks.local_rank, verbose=any(self.config.get(key) for key in TOLD_AS_INFO))
        check(self.config, source=f"{KEY}={self.file}" if self.file else "strategy=deepspeed")
        return self.device

    def _refuse(self, plan: StepPlan, precision: Precision) -> None:
        """
        Raises:
            ConfigError: it would be ignored, or done wrongly.
        """
        if not plan.no_sync_accumulate:
            raise ConfigError(
                "trainer.no_sync_accumulate=false: DeepSpeed's stage says when gradients are exchanged (0 and 1: once "
                "a step; 2 and 3: with each micro-batch); take true."
            )
        if precision.name != "fp16":
            return
        if (precision.init_scale, precision.growth_interval) != (Precision().init_scale, Precision().growth_interval):
            raise ConfigError(
                "precision.init_scale, precision.growth_interval: DeepSpeed's loss scaler is set by "
                "strategy.initial_scale_power and strategy.loss_scale_window."
            )
        if self.stage == 0:
            raise ConfigError(
                "precision=fp16: at stage 0 DeepSpeed divides gradients by a loss scale that it has not multiplied the "
                "loss by; take strategy.zero_stage=1, or precision=bf16."
            )

    def given(self) -> dict[str, Any]:
        """DeepSpeed's configuration by the options or the file, before the run has filled it in.

        Raises:
            ConfigError: an option beside a file, or as `from_options` and `read_file`.
        """
        if self.file is None:
            return from_options(self.options, on_gpu=self.device.type == "cuda")
        for key, value in self.options.items():
            if value != DEFAULTS[key]:
                raise ConfigError(
                    f"strategy.{key}={value}: {KEY}={self.file} has all of DeepSpeed's settings; put it there."
                )
        return read_file(self.file)

    def prepare(
        self, build_model: Callable[[], nn.Module], build_optimizer: BuildOptimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        import deepspeed

        module = self.make_model(build_model)
        optimizer = build_optimizer(module)
        self._refuse_parts(module, optimizer)
        names = {id(p): name for name, p in module.named_parameters()}
        members = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups if group["params"]]
        first = {}
        if self.precision.is_mixed:
            first = {name: p.detach().cpu() for name, p in module.named_parameters()}
            autocast_within(module, self.precision, self.device)
        self.engine = deepspeed.initialize(model=module, optimizer=optimizer, config=dict(self.config))[0]
        self.engine.compile = self._compile
        self.model, self.optimizer = self.engine, optimizer
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=False)  # DeepSpeed has its own
        self.pieces = Pieces(self.engine, optimizer, names, members)
        self.pieces.begin_with(first)
        return self.model, self.optimizer

    def _refuse_parts(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """
        Raises:
            ConfigError: DeepSpeed cannot train this model, or not with this optimizer.
        """
        if self.stage and type(optimizer).__name__ in NOT_IN_PIECES:
            raise ConfigError(
                f"optimizer={type(optimizer).__name__}: it cannot update parameters in pieces, which zero_stage="
                f"{self.stage} has; take optimizer=adamw, strategy.zero_stage=0 or strategy=fsdp."
            )
        if (number := next((name for name, p in module.named_parameters() if not p.dim()), None)) is not None:
            raise ConfigError(
                f"model: DeepSpeed cannot send the parameter {number}, which has no dimensions; give it the shape [1], "
                "or take strategy=ddp."
            )

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        """As a module's own `compile`; the engine's has other arguments."""
        if self.stage == 3:
            raise ConfigError(
                "trainer.compile=true: torch's compiler cannot trace modules whose parameters stage 3 gathers; take "
                "strategy.zero_stage=2, or strategy=fsdp."
            )
        self.engine.module.compile(*args, **kwargs)

    # ------------------------------------------------------------------------------------------------------ a step
    def forward_context(self) -> AbstractContextManager[Any]:
        return NULL  # the engine leaves an autocast that it is called in; see `autocast_within`

    def grad_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        self.engine.set_gradient_accumulation_boundary(enabled)
        return NULL

    def backward(self, loss: torch.Tensor) -> None:
        self.engine.backward(loss)  # which divides by the accumulation steps

    def zero_grad(self) -> None:
        self.engine.optimizer.zero_grad()

    def step(self) -> StepResult:
        if self.before_clip is not None:
            self.before_clip()
        if self.engine.optimizer is self.optimizer:
            return self._plain_step()
        self.engine.step()
        norm = torch.as_tensor(self.engine.get_global_grad_norm(), dtype=torch.float32)
        if not self.engine.optimizer.overflow:
            return StepResult(norm)
        # The gradient was not finite: the engine has dropped it, and lowered fp16's scale.
        return StepResult(norm, retry=True) if self.plan.retry_non_finite else StepResult(norm, skipped=True)

    def _plain_step(self) -> StepResult:
        """Stage 0 in fp32: torch's optimizer itself, which would update with any gradient and tells no norm."""
        norm = get_total_norm([p.grad for p in self.engine.module.parameters() if p.grad is not None])
        if math.isfinite(norm.item()):
            self.engine.step()
            return StepResult(norm)
        self.engine.zero_grad()
        return StepResult(norm, retry=True) if self.plan.retry_non_finite else StepResult(norm, skipped=True)

    # ------------------------------------------------------------------------------------------------------ state
    def snapshot(self) -> Snapshot:
        tensors, parts, groups = self.pieces.snapshot()
        scaler = self._loss_scaler()
        state = {key: getattr(scaler, key) for key in SCALER if hasattr(scaler, key)}
        return Snapshot(tensors, {"optimizer_groups": groups, "loss_scaler": state, "deepspeed": self.config}, parts)

    def load(self, saved: Saved) -> None:
        if self.file is not None:
            self._tell_changes(saved.meta["deepspeed"])
        self.pieces.load_weights(saved, MODEL)
        self.pieces.load_state(saved, OPTIMIZER)
        if (scaler := self._loss_scaler()) is not None:
            for key, value in saved.meta["loss_scaler"].items():
                setattr(scaler, key, value)

    def load_weights(self, saved: Saved, strict: bool = True) -> list[str]:
        prefix = MODEL if any(name.startswith(MODEL) for name in saved.names()) else ""
        return self.pieces.load_weights(saved, prefix, strict)

    def full_weights(self) -> dict[str, torch.Tensor] | None:
        return self.pieces.full_weights(self.device)

    def _loss_scaler(self) -> Any:
        """DeepSpeed's, under precision=fp16."""
        return self.engine.optimizer.loss_scaler if self.precision.needs_scaler else None

    def _tell_changes(self, before: dict[str, Any]) -> None:
        """What stands in the file is no part of a run's configuration, whose changes are told elsewhere."""
        keys = [key for key in {**before, **self.config} if before.get(key) != self.config.get(key)]
        if keys:
            logger.warning("%s=%s: other values than before for %s.", KEY, self.file, ", ".join(sorted(keys)))

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.destroy()
        tidy()
        super().teardown()


DEFAULTS = {
    key: parameter.default
    for key, parameter in inspect.signature(DeepSpeedStrategy).parameters.items()
    if key not in ("config_file", "timeout")
}


def autocast_within(module: nn.Module, precision: Precision, device: torch.device) -> None:
    """Let a module's own forward pass begin with autocast, which converts inputs where it should: the engine turns off
    one that it is called in, and DeepSpeed's 16-bit weights take 16-bit inputs alone."""
    forward = module.forward

    @functools.wraps(forward)
    def within(*args: Any, **kwargs: Any) -> Any:
        with precision.autocast(device):
            return forward(*args, **kwargs)

    module.forward = within
