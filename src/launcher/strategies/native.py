"""Base of the strategies on plain torch: autocast, scaler, clipping, update, state by name."""

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_

from launcher.errors import ConfigError
from launcher.optim.arguments import has_own_state_dict
from launcher.optim.precision import Precision
from launcher.process import ranks
from launcher.process.device import get_device
from launcher.process.lanes import Lanes
from launcher.process.ranks import Ranks
from launcher.strategies.base import (
    BuildModel,
    Snapshot,
    Strategy,
    TensorReader,
    Tensors,
)
from launcher.strategies.initial_weights import build
from launcher.strategies.lane_sums import LaneSums, check_model, check_optimizer, sum_over_replicas
from launcher.strategies.norms import by_mesh, row_norm, total_norm
from launcher.strategies.optimizer_state import load_optimizer, optimizer_snapshot
from launcher.strategies.recompute import recompute_units
from launcher.strategies.sharded import ShardedLike, is_sharded, local, shards_to_write, whole
from launcher.strategies.step import DeferredFlag, StepPlan, StepResult
from launcher.strategies.weights import (
    EXTRA,
    MODEL,
    extra_misfits,
    load_model_tensors,
    load_weights,
    model_meta,
    model_tensors,
)

OPTIMIZER = "optimizer/"


class NativeStrategy(Strategy):
    """A step with torch's own parts."""

    replica_group: object = None
    """The ranks that have the same shards in each replica, in order. Default None: all ranks."""

    def setup(self, plan: StepPlan, precision: Precision, device: str) -> torch.device:
        self.ranks = Ranks.from_env()
        self.plan = plan
        self.precision = precision
        self.device = get_device(self.ranks.local_rank, device)
        precision.setup(self.device)
        if plan.lanes is not None:
            rank = self.ranks.rank
            world_size = self.ranks.world_size
            self.lanes = Lanes(plan.lanes, plan.seed, rank, world_size, self.num_replicas())
        return self.device

    def num_replicas(self) -> int:
        return 1

    def make_model(self, build_model: BuildModel) -> nn.Module:
        """Make the model on this rank's device, with the same weights on every rank."""
        model = build(build_model, self.device)
        if self.plan.recompute_every:
            recompute_units(model, self.plan.recompute_every)
        return model

    def attach(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> None:
        """Take the prepared parts, and list parameters once: a walk costs more than clipping."""
        self.model = model
        self.optimizer = optimizer
        self.scaler, self._scales = scaler, scaler.is_enabled()
        self._loss_divisor = self.plan.lanes or self.plan.grad_accum_steps
        self._sums = LaneSums(self.plan.grad_accum_steps) if self.lanes is not None else None
        self._list_parameters()
        self._check_state()
        if self.lanes is not None:
            check_model(model)
            check_optimizer(optimizer, self.device)
        # A fused optimizer skips an update by itself if `found_inf` is 1, so the host does not wait
        # for it.
        self._device_decides = (
            self.device.type == "cuda"
            and not self._scales
            and not self.plan.retry_non_finite
            and getattr(optimizer, "_step_supports_amp_scaling", False)
        )

    def gradient_exchange(self) -> Callable[[list[nn.Parameter]], None] | None:
        """Return what combines all ranks' gradients, or None if a wrapper does."""
        if self.lanes is not None and self.lanes.replicas > 1:
            return partial(sum_over_replicas, group=self.replica_group)
        return None

    def _list_parameters(self) -> None:
        self._params = by_mesh(p for group in self.optimizer.param_groups for p in group["params"])
        self._num_params = sum(map(len, self._params))
        self._all_params = [p for params in self._params for p in params]
        self._exchange = self.gradient_exchange()

    def _follow_groups(self) -> None:
        """Take the parameters that `add_param_group` has added."""
        num_params = 0
        for group in self.optimizer.param_groups:
            num_params += len(group["params"])
        if num_params != self._num_params:
            self._list_parameters()

    def grad_norm(self, parameters: Iterable[nn.Parameter]) -> torch.Tensor:
        return self._norm(by_mesh(parameters))

    def _norm(self, groups: list[list[nn.Parameter]]) -> torch.Tensor:
        if self.lanes is None:
            return total_norm(groups)
        return row_norm(groups)

    def backward(self, loss: torch.Tensor) -> None:
        if self._loss_divisor > 1:
            loss = loss / self._loss_divisor
        if self._scales:
            loss = self.scaler.scale(loss)
        loss.backward()
        if self._sums is not None:
            self._follow_groups()
            self._sums.add(self._all_params)

    def zero_grad(self) -> None:
        if self._sums is not None:
            self._sums.clear()
        self.optimizer.zero_grad()

    def step(self) -> StepResult:
        self._follow_groups()
        if self._exchange is not None:
            self._exchange(self._all_params)
        if self._scales:
            self.scaler.unscale_(self.optimizer)
        if self.before_clip is not None:
            if self.plan.retry_non_finite and not math.isfinite(
                (norm := self._norm(self._params)).item()
            ):
                # An attempt with a non-finite gradient is repeated.
                return self._leave_out(norm)
            # The call may change the gradients, and so their norm.
            self.before_clip()
        norm = self._norm(self._params)
        veto = self.veto(norm) if self.veto is not None else None
        if self._device_decides:
            return self._update_unseen(norm, veto)
        # The norm is finite if and only if every gradient is finite, unless the sum of squares
        # overflows, which is as bad.
        value = (norm if veto is None else norm.masked_fill(veto, math.inf)).item()
        if not math.isfinite(value):
            return self._leave_out(norm, is_vetoed=veto is not None and bool(veto))
        self._clip(norm)
        if self._scales:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return StepResult(norm)

    def _check_state(self) -> None:
        if has_own_state_dict(self.optimizer) and any(map(is_sharded, self._all_params)):
            name = type(self.optimizer).__name__
            raise ConfigError(
                f"optimizer={name}: has a state_dict() or load_state_dict() of its own, which"
                f" strategy={self.name} does not support, since the parameters are sharded; use"
                " strategy=ddp, or another optimizer."
            )

    def _clip(self, norm: torch.Tensor) -> None:
        if self.plan.max_grad_norm:
            for params in self._params:
                clip_grads_with_norm_(params, self.plan.max_grad_norm, norm)

    def _update_unseen(self, norm: torch.Tensor, veto: torch.Tensor | None) -> StepResult:
        self._clip(norm)
        not_finite = ~norm.isfinite()
        skip = not_finite if veto is None else not_finite | veto
        self.optimizer.found_inf = skip.float()  # type: ignore[attr-defined]
        try:
            self.optimizer.step()
        # The attribute would outlive the step, and skip a later one too.
        finally:
            del self.optimizer.found_inf  # type: ignore[attr-defined]
        self.optimizer.zero_grad()
        return StepResult(norm, skipped=DeferredFlag(not_finite.float()))

    def _leave_out(self, norm: torch.Tensor, is_vetoed: bool = False) -> StepResult:
        if self._scales:
            self.scaler.update()  # lowers the scale without a step
        self.optimizer.zero_grad()
        retry = self.plan.retry_non_finite and not (self._scales or is_vetoed)
        return StepResult(norm, skipped=not (retry or is_vetoed), retry=retry)

    # ---------------------------------------------------------------------------------------- state
    def snapshot(self) -> Snapshot:
        moments, rest = optimizer_snapshot(self.model, self.optimizer)
        live = {MODEL + name: tensor for name, tensor in model_tensors(self.model).items()}
        live |= {OPTIMIZER + name: tensor for name, tensor in moments.items()}
        shards = {name: ShardedLike(local(tensor), tensor) for name, tensor in live.items()}
        tensors, parts = shards_to_write(shards, self.ranks)
        meta = {"optimizer": rest, "scaler": self.scaler.state_dict()} | model_meta(self.model)
        return Snapshot(tensors, meta, parts)

    def load(self, saved: TensorReader) -> None:
        self.load_model(saved)
        extra_misfits(self.model, saved.meta[EXTRA])
        load_optimizer(self.model, self.optimizer, saved, OPTIMIZER, saved.meta["optimizer"])
        if self._scales and saved.meta["scaler"]:
            self.scaler.load_state_dict(saved.meta["scaler"])

    def load_model(self, saved: TensorReader) -> None:
        load_model_tensors(self.model, saved, MODEL, strict=True)

    def load_weights(self, saved: TensorReader, strict: bool = True) -> list[str]:
        return load_weights(self.model, saved, strict)

    def full_weights(self) -> Tensors | None:
        weights = {}
        for name, tensor in model_tensors(self.model).items():
            # Weights are gathered one at a time, since only rank 0 keeps them, in host memory.
            full = whole(tensor)
            if self.ranks.is_main:
                weights[name] = full.cpu()
        return weights if self.ranks.is_main else None

    def teardown(self) -> None:
        ranks.leave()
