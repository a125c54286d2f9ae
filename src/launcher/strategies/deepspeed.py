"""ZeRO's stages by DeepSpeed: its engine does backward, clip and step; schedule, hooks, loop and checkpoints stay ours.

DeepSpeed is imported here alone, and only once it is asked for: that takes seconds.
"""

import functools
import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import get_total_norm

from launcher import distributed
from launcher.errors import ConfigError
from launcher.precision import Precision
from launcher.state import StepPlan, StepResult
from launcher.strategies.base import NULL, BuildOptimizer, Part, Saved, Snapshot
from launcher.strategies.deepspeed_config import KEY, complete, from_options, read_file
from launcher.strategies.deepspeed_process import check, forget_groups, start
from launcher.strategies.native import MODEL, OPTIMIZER, NativeStrategy
from launcher.strategies.weights import misfits
from launcher.strategies.zero import frozen_run, is_cut, is_trained, layout, shape_of
from launcher.strategies.zero_state import load_state, state_snapshot
from launcher.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

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
        self.config = complete(self._given(), plan, precision, self.ranks.world_size, self.file)
        if not plan.no_sync_accumulate:
            raise ConfigError(
                "trainer.no_sync_accumulate=false: DeepSpeed's stage says when gradients are exchanged (0 and 1: once "
                "a step; 2 and 3: with each micro-batch); take true."
            )
        distributed.join(self.device, self.timeout)
        start(self.device, self.ranks.local_rank, verbose=any(self.config.get(key) for key in TOLD_AS_INFO))
        check(self.config, source=f"{KEY}={self.file}" if self.file else "strategy=deepspeed")
        return self.device

    def _given(self) -> dict[str, Any]:
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
        stage = self.config.get("zero_optimization", {}).get("stage", 0)
        if stage and type(optimizer).__name__ in NOT_IN_PIECES:
            raise ConfigError(
                f"optimizer={type(optimizer).__name__}: it cannot update parameters in pieces, as zero_stage={stage} "
                "has them; take optimizer=adamw, strategy.zero_stage=0 or strategy=fsdp."
            )
        names = {id(p): name for name, p in module.named_parameters()}
        self._members = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups if group["params"]]
        first = {name: p.detach().cpu() for name, p in module.named_parameters()} if self.precision.is_mixed else {}
        if self.precision.is_mixed:
            autocast_within(module, self.precision, self.device)
        self.engine = deepspeed.initialize(model=module, optimizer=optimizer, config=dict(self.config))[0]
        self.model, self.optimizer = self.engine, optimizer
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=False)  # DeepSpeed has its own
        self.layout = layout(self.engine.optimizer)
        self._slots = list(self.layout.slots(names))
        self._frozen = {name: p for name, p in module.named_parameters() if not is_trained(p)}
        self._begin_with(first)
        return self.model, self.optimizer

    def _begin_with(self, first: dict[str, torch.Tensor]) -> None:
        """Masters as they were drawn, and no step made: DeepSpeed's have gone through 16 bits, and under stage 0
        through an update with gradients of 0, which decays them and counts."""
        self.optimizer.state.clear()
        for slot in self._slots if first else ():
            slot.of(slot.flat).copy_(first[slot.name].view(-1).narrow(0, slot.start, slot.count))

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
        tensors: dict[str, torch.Tensor] = {}
        parts: dict[str, Part] = {}

        def put(name: str, run: torch.Tensor, shape: tuple[int, ...], start: int) -> None:
            if run.numel() == torch.Size(shape).numel():
                tensors[name] = run.view(shape)
            else:
                tensors[name], parts[name] = run, Part(shape, (start,))

        slots = self._slots if self.layout.shards or self.ranks.is_main else []
        for slot in slots:
            put(MODEL + slot.name, slot.of(slot.flat), slot.shape, slot.start)
        state, groups = state_snapshot(self.optimizer, slots, self._members)
        for name, (value, of) in state.items():
            if of is None:
                tensors[OPTIMIZER + name] = value
            else:
                put(OPTIMIZER + name, value, of.shape, of.start)
        for name, parameter in self._frozen.items():
            if is_cut(parameter) or self.ranks.is_main:
                run, shape, start = frozen_run(parameter)
                put(MODEL + name, run, shape, start)
        if self.ranks.is_main:
            tensors |= {MODEL + name: buffer for name, buffer in self._buffers().items()}
        meta = {"optimizer_groups": groups, "loss_scaler": self._scaler_state(), "deepspeed": self.config}
        return Snapshot(tensors, meta, parts)

    def load(self, saved: Saved) -> None:
        self.load_weights(saved)
        groups = saved.meta["optimizer_groups"]
        load_state(self.optimizer, self._slots, self._members, saved, OPTIMIZER, groups)
        for key, value in saved.meta["loss_scaler"].items():
            setattr(self._loss_scaler(), key, value)

    def load_weights(self, saved: Saved, strict: bool = True) -> list[str]:
        prefix = MODEL if any(name.startswith(MODEL) for name in saved.names()) else ""
        with saved.together():
            problems = self._read_weights(saved, prefix, strict)
        self.layout.weights_from_masters()
        return problems

    def _read_weights(self, saved: Saved, prefix: str, strict: bool) -> list[str]:
        buffers = self._buffers()
        own = {name: shape_of(p) for name, p in self.engine.module.named_parameters()}
        own |= {name: tuple(buffer.shape) for name, buffer in buffers.items()}
        problems = misfits(self.model, own, saved, prefix, strict)
        fitting = set(own) - {problem.split(":", 1)[0] for problem in problems}
        for slot in self._slots:
            if slot.name in fitting:
                saved.read_into(prefix + slot.name, slot.of(slot.flat), (slot.start,))
        for name in self._frozen.keys() & fitting:
            run, _, start = frozen_run(self._frozen[name])
            saved.read_into(prefix + name, run, (start,))
        for name in buffers.keys() & fitting:
            saved.read_into(prefix + name, buffers[name])
        return problems

    def full_weights(self) -> dict[str, torch.Tensor] | None:
        runs = {slot.name: (slot.of(slot.flat), slot.start) for slot in self._slots}
        for name, parameter in self._frozen.items():
            run, _, start = frozen_run(parameter)
            runs[name] = run, start
        weights = {}
        for name, parameter in self.engine.module.named_parameters():
            whole = runs[name][0] if self._is_alike(parameter) else self._gathered(parameter, runs.get(name))
            if self.ranks.is_main:
                weights[name] = whole.view(shape_of(parameter)).cpu().clone()
        return weights | {n: b.cpu() for n, b in self._buffers().items()} if self.ranks.is_main else None

    def _is_alike(self, parameter: nn.Parameter) -> bool:
        """Whether every rank has all of it."""
        return not is_cut(parameter) and not (is_trained(parameter) and self.layout.shards)

    def _gathered(self, parameter: nn.Parameter, mine: tuple[torch.Tensor, int] | None) -> torch.Tensor:
        """All of it on rank 0, 1-d. The ranks' bytes are summed, of which all but one rank's are 0: that is exact."""
        dtype = torch.float32 if is_trained(parameter) else parameter.dtype
        whole = torch.zeros(torch.Size(shape_of(parameter)).numel(), dtype=dtype, device=self.device)
        if mine is not None:
            run, start = mine
            whole.narrow(0, start, run.numel()).copy_(run)
        dist.reduce(whole.view(torch.uint8), 0)
        return whole

    def _loss_scaler(self) -> Any:
        """DeepSpeed's, where it has one."""
        zero = self.engine.optimizer
        return getattr(zero, "loss_scaler", getattr(zero, "loss_scale_config", None))

    def _scaler_state(self) -> dict[str, Any]:
        scaler = self._loss_scaler()
        return {key: getattr(scaler, key) for key in SCALER if hasattr(scaler, key)}

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Those that a checkpoint has."""
        parameters = {name for name, _ in self.engine.module.named_parameters(remove_duplicate=False)}
        state = self.engine.module.state_dict()
        return {name: tensor for name, tensor in state.items() if name not in parameters}

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.destroy()
        forget_groups()
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
