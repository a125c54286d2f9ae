"""Shard each tensor over the ranks with torch's FSDP2 (`fully_shard`)."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from launcher.errors import ConfigError
from launcher.optim.combined import MuonAdamW
from launcher.optim.precision import Precision
from launcher.process import ranks
from launcher.process.rng import restore_rng, rng_state
from launcher.strategies.base import NULL, BuildModel, BuildOptimizer, ModelAndOptimizer, Tensors
from launcher.strategies.buffers import SharedBuffers
from launcher.strategies.initial_weights import draw, outline, same_draws
from launcher.strategies.lane_sums import TreeReduceScatter
from launcher.strategies.native import NativeStrategy
from launcher.strategies.recompute import recompute_units
from launcher.strategies.shard_units import own_parameters, shard_units
from launcher.strategies.sharded import copy_shard
from launcher.strategies.step import StepPlan, StepResult
from launcher.strategies.weights import is_fully_sharded
from launcher.types import NonNegativeInt, PositiveInt, Seconds

Sharding = Literal["full_shard", "shard_grad_op", "no_shard"]
Dtype = Literal["fp32", "bf16"]
WHOLE_MATRIX_OPTIMIZERS = (MuonAdamW, *filter(None, [getattr(torch.optim, "Muon", None)]))
PLAIN_TENSOR_OPTIMIZERS = torch.optim.Adafactor, torch.optim.Rprop
"""Optimizers that use operators which torch does not implement for sharded tensors."""


@dataclass(eq=False)
class FsdpStrategy(NativeStrategy):
    """Shards parameters, gradients and optimizer state over the ranks, each by its first dimension.

    With several replicas (Zhao et al. 2023, arXiv:2304.11277, section 3.2.2) the ranks form a mesh
    `replicate` x `shard`. Shards are exchanged within a row, and gradients are averaged over the
    rows too.

    Args:
        sharding: full_shard frees a block's weights after its forward pass and gathers them again
            for the backward pass. shard_grad_op keeps them in between. no_shard keeps the full
            weights on every rank.
        replicate: copies of the full model. It must divide the number of ranks.
        min_params: a module with at least this many parameters is sharded as a unit. Default null:
            the model's own blocks, else 100000. With 0, the whole model is one unit.
        mixed_precision: under precision=bf16 or fp16, weights are gathered and used in that format.
            With false, and with `trainer.lanes`, they are gathered in fp32, and autocast converts
            them.
        reduce_dtype: under mixed precision, gradients are summed over the ranks in this format.
        cpu_offload: shards, their gradients and the optimizer's state and step are on the host.
        prefetch: number of blocks gathered ahead of the current one, in addition to FSDP2's own
            prefetching.
        init: with device, each rank initializes the full model on its device once and keeps its
            shard, so the weights are the same as under strategy=none. With host, rank 0 initializes
            it in host memory and sends out the shards, for a model larger than a device.
        timeout: seconds that a rank waits for the others before it fails.
    """

    name = "fsdp"
    supports_lanes = True
    forward_is_collective = True
    compiles_whole = False

    sharding: Sharding = "full_shard"
    replicate: PositiveInt = 1
    min_params: NonNegativeInt | None = None
    mixed_precision: bool = True
    reduce_dtype: Dtype = "fp32"
    cpu_offload: bool = False
    prefetch: NonNegativeInt = 0
    init: Literal["device", "host"] = "device"
    timeout: Seconds = 1800.0

    _syncs = True

    # --------------------------------------------------------------------------------------- set-up
    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        super().setup(plan, precision, device)
        world = self.ranks.world_size
        if self.sharding == "no_shard" and self.replicate not in (1, world):
            raise ConfigError(
                f"strategy.replicate={self.replicate}: strategy.sharding=no_shard has a copy on"
                f" each of the {world} ranks; use strategy.replicate=1 or"
                " strategy.sharding=full_shard."
            )
        if self.reduce_dtype != "fp32" and not (self.mixed_precision and precision.is_mixed):
            raise ConfigError(
                f"strategy.reduce_dtype={self.reduce_dtype}: gradients are fp32 without mixed"
                " precision; use strategy.reduce_dtype=fp32 or precision=bf16."
            )
        if world % self.replicate:
            raise ConfigError(
                f"strategy.replicate={self.replicate}: does not divide the {world} ranks; use a"
                f" divisor of {world}."
            )
        if plan.lanes is not None:
            self._check_lanes()
        ranks.join(self.device, self.timeout)
        replicas = self.num_replicas()
        from torch.distributed.device_mesh import init_device_mesh

        if replicas == 1:
            self.mesh = init_device_mesh(self.device.type, (world,), mesh_dim_names=("shard",))
        else:
            shape = (replicas, world // replicas)
            self.mesh = init_device_mesh(
                self.device.type, shape, mesh_dim_names=("replicate", "shard")
            )
            if self.lanes is not None:
                # The replicas' sums are added once a step. FSDP2 itself would add them with each
                # lane, in an order of its own.
                self.replica_group = self.mesh["replicate"].get_group()
                self.ranks = replace(self.ranks, replica=self.mesh["replicate"].get_local_rank())
                self.mesh = self.mesh["shard"]
        return self.device

    def num_replicas(self) -> int:
        if self.sharding == "no_shard":
            return self.ranks.world_size
        return self.replicate

    def _check_lanes(self) -> None:
        if self.reduce_dtype != "fp32":
            raise ConfigError(
                f"strategy.reduce_dtype={self.reduce_dtype}: rounds the gradients that ranks"
                " exchange, and with trainer.lanes no number may depend on the ranks; use"
                " strategy.reduce_dtype=fp32."
            )
        if self.init == "host" and self.device.type != "cpu":
            raise ConfigError(
                "strategy.init=host: draws other initial weights than a device, and with"
                " trainer.lanes no number may depend on the strategy; use strategy.init=device."
            )
        from torch.distributed.fsdp import FSDPModule

        if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
            raise ConfigError(
                f"trainer.lanes: strategy=fsdp needs torch 2.9 or later for it, and this is torch"
                f" {torch.__version__}; use strategy=ddp."
            )

    def prepare(
        self, build_model: BuildModel, build_optimizer: BuildOptimizer
    ) -> ModelAndOptimizer:
        if self.init == "device":
            model = self.make_model(build_model)
            self._shard(model)
        else:
            with same_draws():
                model = self._from_host(build_model)
        # The optimizer is built only now, since sharding has replaced the model's parameters.
        optimizer = build_optimizer(model)
        if isinstance(optimizer, PLAIN_TENSOR_OPTIMIZERS):
            raise ConfigError(
                f"optimizer={type(optimizer).__name__}: it cannot update sharded parameters; use"
                " another optimizer, or strategy=ddp."
            )
        if self.lanes is not None and isinstance(optimizer, WHOLE_MATRIX_OPTIMIZERS):
            raise ConfigError(
                f"optimizer={type(optimizer).__name__}: its products of sharded matrices round by"
                " the number of ranks, so trainer.lanes does not support it under strategy=fsdp;"
                " use strategy=ddp, or another optimizer."
            )
        self.attach(model, optimizer, self.precision.scaler(self.device))
        has_own = self.ranks.world_size == 1 or self.lanes is not None
        self._buffers = None if has_own else SharedBuffers(model)
        return self.model, self.optimizer

    def _shard(self, model: nn.Module) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

        options: dict[str, Any] = {"mesh": self.mesh, "mp_policy": self._mixed_precision_policy()}
        if self.cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        units = shard_units(model, self.min_params)
        check_shardable(model, units)
        for unit in units:
            fully_shard(unit, reshard_after_forward=self.sharding == "full_shard", **options)
        # Parameters outside of units are used at both ends of the model, so freeing them in between
        # saves nothing.
        fully_shard(model, reshard_after_forward=False, **options)
        self._prefetch(list(reversed(units)))
        self._shards = [module for module in model.modules() if is_fully_sharded(module)]
        if self.lanes is None:
            return
        for module in self._shards:
            sharded: Any = module
            sharded.set_custom_reduce_scatter(TreeReduceScatter())
            # The loss is divided by the number of lanes, so exchanged values are only added.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)

    def _mixed_precision_policy(self) -> object:
        """Use bf16 or fp16 weights under autocast; FSDP2 would round all inputs, even tables."""
        from torch.distributed.fsdp import MixedPrecisionPolicy

        # With lanes, autocast converts weights as under the other strategies, since weights that
        # are gathered in 16 bits round in other places.
        if self.lanes is not None or not (self.mixed_precision and self.precision.is_mixed):
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        reduce_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[self.reduce_dtype]
        return MixedPrecisionPolicy(self.precision.dtype, reduce_dtype, cast_forward_inputs=False)

    def _prefetch(self, units: list[Any]) -> None:
        """Prefetch `units`, which are in the order of the forward pass."""
        depth = self.prefetch
        for i, unit in enumerate(units if depth else ()):
            unit.set_modules_to_forward_prefetch(units[i + 1 : i + 1 + depth])
            unit.set_modules_to_backward_prefetch(units[max(0, i - depth) : i][::-1])

    def _from_host(self, build_model: BuildModel) -> nn.Module:
        """Allocate the shards, and fill them from the full model in rank 0's host memory."""
        # The model is built up to three times, each time from the same random state.
        start = rng_state()
        model = outline(build_model)
        restore_rng(start)
        if model is None:
            model = draw(build_model, torch.device("cpu"))
            restore_rng(start)
        if self.plan.recompute_every:
            recompute_units(model, self.plan.recompute_every)
        ties = _ties(model)
        self._shard(model)
        model.to_empty(device="cpu" if self.cpu_offload else self.device)
        _tie(ties)
        for module in model.modules():
            for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
                setattr(module, name, buffer.to(self.device))
        source: Tensors = {}
        if self.ranks.is_main:
            drawn = draw(build_model, torch.device("cpu"))
            source = {
                **dict(drawn.named_parameters()),
                **dict(drawn.named_buffers(remove_duplicate=False)),
            }
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            full = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            if self.ranks.is_main:
                full.copy_(source[name])
            # Gloo does not support every dtype.
            dist.broadcast(full.reshape(-1).view(torch.uint8), 0)
            copy_shard(tensor, full)
        return model

    # --------------------------------------------------------------------------------------- a step
    def step(self) -> StepResult:
        result = super().step()
        if self._buffers is not None:
            self._buffers.share()
        return result

    def forward_context(self) -> AbstractContextManager[object]:
        context = super().forward_context()
        if torch.is_grad_enabled():
            return context
        return self._reshard_after(context)

    @contextmanager
    def _reshard_after(self, context: AbstractContextManager[object]) -> Iterator[None]:
        """Free gathered weights after `context`.

        Without a backward pass to free them they would stay, and later changes of the shards
        (swapping in averaged weights) would not reach them.
        """
        with context:
            yield
        for module in self._shards:
            module.reshard()  # type: ignore[operator]

    def grad_sync(self, enabled: bool) -> AbstractContextManager[object]:
        # Lanes are exchanged one by one.
        enabled = enabled or self.plan.sync_every_micro_batch or self.lanes is not None
        if enabled is not self._syncs:
            self._syncs = enabled
            self.model.set_requires_gradient_sync(enabled)  # type: ignore[operator]
        return NULL


def check_shardable(model: nn.Module, units: Sequence[nn.Module]) -> None:
    """Check the model for what `fully_shard` does not support; inner `units` come first."""
    names = {id(p): name for name, p in model.named_parameters()}
    for p in model.parameters():
        if not p.dim():
            raise ConfigError(
                f"model: strategy=fsdp cannot shard the parameter {names[id(p)]}, which has no"
                " dimensions; give it the shape [1], or use strategy=ddp."
            )
        if p.is_complex():
            raise ConfigError(
                f"model: strategy=fsdp cannot shard the parameter {names[id(p)]}, which is complex;"
                " use strategy=ddp, or a real parameter with torch.view_as_complex."
            )
    sharded: set[int] = set()
    for unit in (*units, model):
        unit_parameters = [p for p in unit.parameters() if id(p) not in sharded]
        sharded |= set(map(id, unit_parameters))
        trained = [p for p in unit_parameters if p.requires_grad]
        other = next((p for p in trained if p.dtype != trained[0].dtype), None)
        if other is not None:
            first = trained[0]
            raise ConfigError(
                "model: strategy=fsdp shards parameters of one dtype together, but"
                f" {names[id(first)]} is {dtype_name(first)} and {names[id(other)]} is"
                f" {dtype_name(other)}; convert one of them, or use strategy=ddp."
            )


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


ParameterPlace = tuple[nn.Module, str]


def _ties(model: nn.Module) -> list[list[ParameterPlace]]:
    """Return the modules and names that share each tied parameter."""
    slots_by_id: dict[int, list[ParameterPlace]] = {}
    for module in model.modules():
        for name, p in own_parameters(module):
            slots_by_id.setdefault(id(p), []).append((module, name))
    return [slots for slots in slots_by_id.values() if len(slots) > 1]


def _tie(ties: list[list[ParameterPlace]]) -> None:
    for (first, key), *others in ties:
        for module, name in others:
            setattr(module, name, getattr(first, key))
