"""ZeRO's stages by DeepSpeed: backward, clip and step are its engine's, the rest is ours."""

import functools
import logging
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from launcher.config.schema.deepspeed_file import BF16, FP16, KEY, read_file
from launcher.config.tree import Tree
from launcher.errors import ConfigError
from launcher.optim.arguments import has_own_state_dict
from launcher.optim.precision import Precision
from launcher.process import ranks
from launcher.strategies.base import (
    NULL,
    BuildModel,
    BuildOptimizer,
    ModelAndOptimizer,
    Snapshot,
    TensorReader,
    Tensors,
)
from launcher.strategies.buffers import SharedBuffers
from launcher.strategies.deepspeed import engine_setup
from launcher.strategies.deepspeed.engine_state import EngineState
from launcher.strategies.native import NativeStrategy
from launcher.strategies.step import StepPlan, StepResult
from launcher.strategies.weights import EXTRA, MODEL, extra_misfits, load_weights, model_meta
from launcher.types import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seconds,
    Size,
)

logger = logging.getLogger("launcher")
WHOLE_TENSORS_ONLY = frozenset({"Adafactor", "Adagrad", "Muon", "MuonAdamW", "SparseAdam"})
"""Optimizers whose update of a value depends on more than that value, or which DeepSpeed replaces
with its own."""
ZERO_KEYS = (
    "overlap_comm", "contiguous_gradients", "reduce_bucket_size", "sub_group_size",
    "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    "stage3_max_live_parameters", "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save",
)  # fmt: skip
OFFLOAD_KEYS = ("offload_optimizer", "offload_param")
FP16_KEYS = (
    "loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis", "min_loss_scale",
)  # fmt: skip
REPORTING = ("memory_breakdown", "dump_state", "flops_profiler", "comms_logger")
"""Keys of DeepSpeed's configuration that report through log messages of level INFO."""


@dataclass(eq=False)
class DeepSpeedStrategy(NativeStrategy):
    """ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) over data-parallel ranks.

    Args:
        zero_stage: with 1, optimizer state and fp32 masters are sharded over the ranks. With 2,
            gradients too. With 3, parameters too, gathered while their module runs. With 0, nothing
            is sharded, and gradients are averaged as under ddp.
        offload_optimizer: masters, moments and the optimizer's step are on the host (from stage 1).
        offload_param: the shards of parameters are on the host until they are gathered (stage 3).
        overlap_comm: exchange gradients during the backward pass.
        contiguous_gradients: copy gradients into one buffer as they are computed.
        reduce_bucket_size: values exchanged at once.
        sub_group_size: values updated at once (stage 3).
        stage3_prefetch_bucket_size: values gathered ahead.
        stage3_param_persistence_threshold: parameters with fewer values stay gathered.
        stage3_max_live_parameters: at most this many values are gathered at the same time.
        stage3_max_reuse_distance: a parameter that is needed again within this many values stays
            gathered.
        stage3_gather_16bit_weights_on_model_save: for DeepSpeed's own saving, which is not used
            here.
        loss_scale: a fixed scale under precision=fp16. With 0, it is dynamic.
        loss_scale_window: steps without overflow until the scale doubles.
        initial_scale_power: the first scale is 2 to this power.
        hysteresis: overflows before the scale is halved.
        min_loss_scale: the lowest dynamic scale.
        wall_clock_breakdown: DeepSpeed prints the times of each part of a step.
        config_file: a DeepSpeed configuration in JSON, in place of all the options above.
        timeout: seconds that a rank waits for the others before it fails.
    """

    is_deepspeed = True
    code_keys = ("config_file",)
    name = "deepspeed"
    checkpoint_format = "deepspeed"
    forward_is_collective = True
    compiles_whole = False
    has_plain_tensors = False

    zero_stage: Literal[0, 1, 2, 3] = 2
    offload_optimizer: bool = False
    offload_param: bool = False
    overlap_comm: bool | Literal["auto"] = True
    contiguous_gradients: bool | Literal["auto"] = True
    reduce_bucket_size: Size = 500_000_000
    sub_group_size: Size = 1_000_000_000
    stage3_prefetch_bucket_size: Size = 50_000_000
    stage3_param_persistence_threshold: Size = 100_000
    stage3_max_live_parameters: Size = 1_000_000_000
    stage3_max_reuse_distance: Size = 1_000_000_000
    stage3_gather_16bit_weights_on_model_save: bool = True
    loss_scale: NonNegativeFloat = 0.0
    loss_scale_window: PositiveInt = 1000
    initial_scale_power: NonNegativeInt = 16
    hysteresis: PositiveInt = 2
    min_loss_scale: PositiveFloat = 1.0
    wall_clock_breakdown: bool = False
    config_file: str | None = None
    timeout: Seconds = 1800.0

    def __post_init__(self) -> None:
        self.file = Path(self.config_file) if self.config_file is not None else None

    # --------------------------------------------------------------------------------------- set-up
    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        engine_setup.require()
        if precision.name == "fp8":
            raise ConfigError(
                "precision=fp8: strategy=deepspeed does not support it; use strategy=fsdp, or"
                " precision=bf16."
            )
        super().setup(plan, precision, device)
        config = (
            self.options(on_gpu=self.device.type == "cuda")
            if self.file is None
            else read_file(self.file)
        )
        self.config = complete(config, plan, precision, self.ranks.world_size)
        self.stage = self.config.get("zero_optimization", {}).get("stage", 0)
        if precision.name == "fp16":
            self._reject_fp16(precision)
        ranks.join(self.device, self.timeout)
        engine_setup.start(
            self.device,
            self.ranks.local_rank,
            verbose=any(self.config.get(key) for key in REPORTING),
        )
        engine_setup.check(
            self.config, source=f"{KEY}={self.file}" if self.file else "strategy=deepspeed"
        )
        return self.device

    def options(self, on_gpu: bool) -> Tree:
        """Return DeepSpeed's configuration from the options; `auto` is left to DeepSpeed."""
        settings = vars(self)
        host = {"device": "cpu", "pin_memory": on_gpu}
        zero = {key: settings[key] for key in ZERO_KEYS if settings[key] != "auto"}
        zero |= {key: host for key in OFFLOAD_KEYS if settings[key]}
        return {
            "zero_optimization": {"stage": self.zero_stage, **zero},
            "fp16": {key: settings[key] for key in FP16_KEYS},
            "wall_clock_breakdown": self.wall_clock_breakdown,
        }

    def _reject_fp16(self, precision: Precision) -> None:
        if (precision.init_scale, precision.growth_interval) != (
            Precision().init_scale,
            Precision().growth_interval,
        ):
            raise ConfigError(
                "precision.init_scale, precision.growth_interval: DeepSpeed's loss scaler is set by"
                " strategy.initial_scale_power and strategy.loss_scale_window."
            )
        if self.stage == 0:
            raise ConfigError(
                "precision=fp16: at stage 0 DeepSpeed divides gradients by a loss scale that it has"
                " not multiplied the loss by; set strategy.zero_stage=1, or precision=bf16."
            )

    def prepare(
        self, build_model: BuildModel, build_optimizer: BuildOptimizer
    ) -> ModelAndOptimizer:
        import deepspeed

        module = self.make_model(build_model)
        optimizer = build_optimizer(module)
        self._reject_parts(module, optimizer)
        names = {id(p): name for name, p in module.named_parameters()}
        shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        members = [
            [names[id(p)] for p in group["params"]]
            for group in optimizer.param_groups
            if group["params"]
        ]
        first = {}
        if self.precision.is_mixed:
            first = {name: p.detach().cpu() for name, p in module.named_parameters()}
            autocast_within(module, self.precision, self.device)
        # Stage 3 replaces it for the whole process.
        self.linear = torch.nn.functional.linear
        self.engine = deepspeed.initialize(
            model=module, optimizer=optimizer, config=dict(self.config)
        )[0]
        self.engine.compile = self._compile
        self.model = self.engine
        self.optimizer = optimizer
        self.buffers = SharedBuffers(module)
        # DeepSpeed has its own.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=False)
        self.state = EngineState(self.engine, optimizer, self.stage, members, shapes, first)
        return self.model, self.optimizer

    def _reject_parts(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if has_own_state_dict(optimizer):
            raise ConfigError(
                f"strategy=deepspeed: {type(optimizer).__name__} has a state_dict() or"
                " load_state_dict() of its own, which is not supported; use strategy=ddp."
            )
        if self.stage and type(optimizer).__name__ in WHOLE_TENSORS_ONLY:
            raise ConfigError(
                f"optimizer={type(optimizer).__name__}: it cannot update the sharded parameters of"
                f" zero_stage={self.stage}; use optimizer=adamw, strategy.zero_stage=0 or"
                " strategy=fsdp."
            )
        number = next((name for name, p in module.named_parameters() if not p.dim()), None)
        if number is not None:
            raise ConfigError(
                f"model: DeepSpeed does not support the parameter {number}, which has no"
                " dimensions; give it the shape [1], or use strategy=ddp."
            )
        number = next((name for name, p in module.named_parameters() if p.is_complex()), None)
        if number is not None:
            raise ConfigError(
                f"model: DeepSpeed does not support the parameter {number}, which is complex; use"
                " strategy=ddp, or a real parameter with torch.view_as_complex."
            )

    def _compile(self, *args: object, **kwargs: object) -> None:
        """Compile with the arguments of a module's own `compile`, which the engine's lacks."""
        if self.stage == 3:
            raise ConfigError(
                "trainer.compile=true: torch's compiler cannot trace modules whose parameters stage"
                " 3 gathers; set strategy.zero_stage=2, or strategy=fsdp."
            )
        self.engine.module.compile(*args, **kwargs)

    # --------------------------------------------------------------------------------------- a step
    def forward_context(self) -> AbstractContextManager[object]:
        # The engine turns off an autocast around it, see `autocast_within`.
        return NULL

    def grad_sync(self, enabled: bool) -> AbstractContextManager[object]:
        self.engine.set_gradient_accumulation_boundary(enabled)
        return NULL

    def backward(self, loss: torch.Tensor) -> None:
        # The engine divides by the accumulation steps.
        self.engine.backward(loss)

    def zero_grad(self) -> None:
        self.engine.optimizer.zero_grad()

    def step(self) -> StepResult:
        if self.before_clip is not None:
            self.before_clip()
        if self.engine.optimizer is self.optimizer:
            # At stage 0 in fp32, the engine reports no norm, and updates with any gradient.
            norm = get_total_norm(
                [p.grad for p in self.engine.module.parameters() if p.grad is not None]
            )
            is_finite = math.isfinite(norm.item())
            if is_finite:
                self.engine.step()
            else:
                self.engine.zero_grad()
        # If the gradient is not finite, the engine drops it, and lowers fp16's scale.
        else:
            self.engine.step()
            norm = torch.as_tensor(self.engine.get_global_grad_norm(), dtype=torch.float32)
            is_finite = self.engine.was_step_applied()
        if self.ranks.world_size > 1:
            self.buffers.share()
        retry = not is_finite and self.plan.retry_non_finite
        return StepResult(norm, skipped=not is_finite and not retry, retry=retry)

    # ---------------------------------------------------------------------------------------- state
    def snapshot(self) -> Snapshot:
        keys = [key for key in self.optimizer.state if not isinstance(key, torch.Tensor)]
        if keys:
            raise ConfigError(
                f"strategy=deepspeed: {type(self.optimizer).__name__} keeps state under {keys[0]},"
                " which is not a parameter; use strategy=ddp."
            )
        tensors, parts, groups = self.state.snapshot()
        scaler = engine_setup.scaler_state(self.engine) if self.precision.needs_scaler else {}
        meta = {"optimizer": groups, "loss_scaler": scaler, "deepspeed": self.config}
        return Snapshot(tensors, meta | model_meta(self.model), parts)

    def load(self, saved: TensorReader) -> None:
        if self.file is not None:
            self._report_changes(saved.meta["deepspeed"])
        self.state.load_weights(saved, MODEL)
        extra_misfits(self.model, saved.meta[EXTRA])
        self.state.load_optimizer(saved, saved.meta["optimizer"])
        if self.precision.needs_scaler:
            engine_setup.load_scaler_state(self.engine, saved.meta["loss_scaler"])

    def load_weights(self, saved: TensorReader, strict: bool = True) -> list[str]:
        return load_weights(self.model, saved, strict, self.state.load_weights)

    def full_weights(self) -> Tensors | None:
        return self.state.full_weights()

    def _report_changes(self, before: Tree) -> None:
        """Warn of changes in the file; the run's configuration is compared elsewhere."""
        keys = [key for key in {**before, **self.config} if before.get(key) != self.config.get(key)]
        if keys:
            logger.warning(
                "%s=%s: changed since the checkpoint: %s.", KEY, self.file, ", ".join(sorted(keys))
            )

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.destroy()
        if hasattr(self, "linear"):
            torch.nn.functional.linear = self.linear
        super().teardown()


def autocast_within(module: nn.Module, precision: Precision, device: torch.device) -> None:
    """Run a module's forward pass under autocast, which converts inputs where needed.

    DeepSpeed's 16-bit weights accept only 16-bit inputs, and the engine turns off autocast
    around it.
    """
    forward = module.forward

    @functools.wraps(forward)
    def within(*args: object, **kwargs: object) -> object:
        with precision.autocast(device):
            return forward(*args, **kwargs)

    module.forward = within


def complete(config: Tree, plan: StepPlan, precision: Precision, world_size: int) -> Tree:
    micro_batch_size = plan.micro_batch_size or 1
    grad_accum_steps = plan.grad_accum_steps
    formats = {key: {"enabled": False} for key in (FP16, BF16)}
    if precision.name in formats:
        formats[precision.name] = {**config.get(precision.name, {}), "enabled": True}
    # Otherwise DeepSpeed would update with gradients that are not finite.
    if formats[BF16]["enabled"]:
        formats[BF16]["check_grad_overflow"] = True
    return {
        "steps_per_print": None,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **config,
        **formats,
        "train_batch_size": micro_batch_size * grad_accum_steps * world_size,
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": grad_accum_steps,
        "gradient_clipping": plan.max_grad_norm or 0.0,
    }
