"""Estimate the memory of a step on a machine that is only described.

The model itself runs its passes, over tensors without values. They are counted as each tensor is
made and dropped.
"""

import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.config.construct import instantiate
from launcher.config.plain import settings_of
from launcher.config.schema import without_own_keys
from launcher.config.sections import TrainerSettings
from launcher.hooks.records import map_nested_tensor
from launcher.optim.fused import has_fused_kernel
from launcher.optim.optimizers import needs_closure
from launcher.optim.parts import OptimizerParts
from launcher.optim.precision import Precision
from launcher.strategies.base import MemoryLayout, Strategy, UnknownMemory
from launcher.strategies.recompute import recompute_units
from launcher.strategies.units import own_parameters
from launcher.train.build import build_model, build_optimizer, step_plan

WITHOUT_VALUES = "the model's passes, or the optimizer's step, depend on the values of tensors"


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one rank."""

    parameters: int
    gradients: int
    moments: int
    activations: int
    """The tensors that the forward pass keeps for the backward pass, and gathered weights."""
    peak: int
    """The most at any moment of a step, temporary tensors included."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make while it is active.

    A tensor counts until it is dropped.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = 0
        self._known: set[int] = set()

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count these tensors."""
        for tensor in tensors:
            self._note(tensor, 0)

    def _note(self, tensor: torch.Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        if (key := id(storage)) in self._known:
            return
        self._known.add(key)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.current -= size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else [output]:
            if isinstance(tensor, torch.Tensor):
                self._note(tensor, tensor.untyped_storage().nbytes())
        return output


def estimate(config: DictConfig, world_size: int) -> tuple[StepMemory, int]:
    """The memory of a step of a configuration, and the samples of a micro-batch.

    Raises:
        UnknownMemory: the configuration has a part whose memory is not known, or the passes need
            values.
    """
    settings = settings_of(TrainerSettings, config.trainer)
    precision: Precision = instantiate(config.precision)
    strategy: Strategy = instantiate(config.strategy)
    layout = strategy.memory_layout(world_size, precision)
    if settings.lanes is not None:
        raise UnknownMemory("the memory with trainer.lanes is not estimated; use null")
    plan = step_plan(settings, config.data.batch_size, world_size, precision)
    data = instantiate(without_own_keys(config.data))
    data.check()
    data.num_workers = 0  # one batch is made here
    cpu = torch.device("cpu")
    loader = data.train_loader(
        seed=config.seed,
        micro_batch_size=plan.micro_batch_size,
        rank=0,
        world_size=world_size,
        device=cpu,
    )
    has_fused_kernel("cpu", torch.float32)  # while tensors have values

    def model() -> nn.Module:
        made = build_model(config.model)
        if plan.recompute_every:
            recompute_units(made, plan.recompute_every)
        return made

    def optimizer(made: nn.Module) -> torch.optim.Optimizer:
        found = build_optimizer(config.optimizer, made)
        if isinstance(found, OptimizerParts) or needs_closure(found):
            raise UnknownMemory(
                f"the memory with {type(found).__name__} is not estimated; use optimizer=adamw"
            )
        return found

    try:
        memory = step_memory(
            model,
            optimizer,
            next(iter(loader)),
            layout,
            lambda: precision.autocast(cpu),
            plan.grad_accum_steps > 1,
        )
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise UnknownMemory(f"{WITHOUT_VALUES} ({error})") from error
    assert plan.micro_batch_size is not None
    return memory, plan.micro_batch_size


def step_memory(
    build_model: Callable[[], nn.Module],
    build_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    batch: object,
    layout: MemoryLayout,
    forward_context: Callable[[], object],
    accumulates: bool,
) -> StepMemory:
    """Estimate the peak memory of a step on a rank.

    Args:
        build_model: function that builds the model.
        build_optimizer: function that builds the optimizer of a model.
        batch: a micro-batch of a rank; its values do not count.
        layout: what the strategy keeps on a rank.
        forward_context: around each forward pass.
        accumulates: a step has several micro-batches.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = build_model()
        model.train()
        parameters = list(model.parameters())
        trained = [p for p in parameters if p.requires_grad]
        parameter_bytes = layout.share(_bytes(parameters))
        constant = parameter_bytes + _bytes(model.buffers())
        inputs = map_nested_tensor(mode.from_tensor, batch)
        originals = [] if layout.gathered_dtype is None else _convert(model, layout.gathered_dtype)
        live = LiveBytes()
        live.ignore([*model.parameters(), *model.buffers()])
        map_nested_tensor(lambda tensor: live.ignore([tensor]), inputs)
        with live:
            activations = _passes(model, inputs, layout, forward_context, accumulates, live)
            peak_of_passes = live.peak
            for p in model.parameters():
                p.grad = None
        for module, name, p in originals:
            setattr(module, name, p)
        gradients = layout.share(_bytes(trained))
        moments, temporary = _update(build_optimizer(model), trained)
    moments, temporary = layout.share(moments), layout.share(temporary)
    copies = _copies(layout, accumulates)
    peak = constant + moments + max(peak_of_passes, copies * gradients + temporary)
    return StepMemory(parameter_bytes, gradients, moments, activations, peak)


def _convert(model: nn.Module, dtype: torch.dtype) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Replace the parameters by parameters of another format.

    Returns:
        The modules, names and former parameters.
    """
    converted: dict[int, nn.Parameter] = {}
    slots = [(m, name, p) for m in model.modules() for name, p in own_parameters(m)]
    for module, name, p in slots:
        if id(p) not in converted:
            converted[id(p)] = nn.Parameter(p.detach().to(dtype), requires_grad=p.requires_grad)
        setattr(module, name, converted[id(p)])
    return slots


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _copies(layout: MemoryLayout, accumulates: bool) -> int:
    """The copies of its gradients that a rank has.

    Buckets are filled with the last micro-batch.
    """
    return max(layout.gradient_copies, 1 + (layout.has_buckets and accumulates))


def _passes(
    model: nn.Module,
    inputs: object,
    layout: MemoryLayout,
    forward_context: Callable[[], Any],
    accumulates: bool,
    live: LiveBytes,
) -> int:
    """Make the passes of a step; return what a forward pass keeps."""
    trained = [p for p in model.parameters() if p.requires_grad]
    held: list[object] = []
    if layout.has_buckets:
        for p in trained:
            p.grad = torch.zeros_like(p)
        copies = _copies(layout, accumulates) - 1
        held = [torch.zeros_like(p) for _ in range(copies) for p in trained]
    with _Gathered(model, layout) if layout.units is not None else nullcontext():
        for _ in range(2 if accumulates else 1):
            before = live.current
            with forward_context():
                loss, _records = model(inputs)
            kept = live.current - before
            with warnings.catch_warnings():
                # Hooks of a backward pass on modules whose inputs have no gradient.
                warnings.simplefilter("ignore")
                loss.backward()
            del loss, _records
    del held
    return kept


def _update(optimizer: torch.optim.Optimizer, trained: list[nn.Parameter]) -> tuple[int, int]:
    """The bytes of the optimizer's state, and those that its step needs for a moment."""
    for group in optimizer.param_groups:
        if "fused" in group:  # another kernel reads the number of steps, which has no value here
            group["fused"], group["foreach"] = True, False
    for p in trained:
        p.grad = torch.zeros_like(p)
    live = LiveBytes()
    live.ignore([*trained, *(p.grad for p in trained if p.grad is not None)])
    with live:
        optimizer.step()
    return live.current, live.peak - live.current


class _Gathered:
    """The weights that FSDP gathers for a unit, and the buffers of its exchanges.

    They are made and dropped when FSDP2 does so.

    A gather has a buffer, which is kept until the next gather, and the weights, which are freed
    after the unit's pass; the root's are kept to the end. The backward pass gathers a unit ahead. A
    unit's gradients are copied into a buffer, which is kept until the next unit's.
    """

    def __init__(self, model: nn.Module, layout: MemoryLayout):
        assert layout.units is not None
        self.model, self.layout = model, layout
        self.units = [*layout.units(model), model]
        self.weights: dict[int, object] = {}
        self.buffer: object = None
        self.ahead: object = None
        self.reduced: object = None
        self.shards: list[object] = []
        self.order: list[int] = []
        self.handles: list[Any] = []
        seen: set[int] = set()
        self.unit_parameters: list[list[nn.Parameter]] = []
        for unit in self.units:
            unit_parameters = [p for p in unit.parameters() if id(p) not in seen]
            seen |= {id(p) for p in unit_parameters}
            self.unit_parameters.append(unit_parameters)
        self.left = [0] * len(self.units)

    def _empty(self, index: int, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        return [
            torch.empty_like(p, dtype=dtype, requires_grad=False)
            for p in self.unit_parameters[index]
        ]

    def _gather(self, index: int) -> None:
        if index not in self.weights:
            self.buffer = self._empty(index)
            self.weights[index] = self._empty(index)

    def _before_forward(self, index: int) -> None:
        self._gather(index)
        self.order.append(index)

    def _after_forward(self, index: int) -> None:
        if self.layout.frees_gathered and index != len(self.units) - 1:
            self.weights.pop(index, None)

    def _before_backward(self, index: int) -> None:
        self.buffer = None
        if index not in self.weights:
            self.weights[index] = self._empty(index)
        at = self.order.index(index)
        self.ahead = self._empty(self.order[at - 1]) if at > 0 else None
        self.left[index] = sum(p.requires_grad for p in self.unit_parameters[index])

    def _after_gradient(self, index: int) -> None:
        self.left[index] -= 1
        if self.left[index] == 0:
            self._exchange(index)

    def _exchange(self, index: int) -> None:
        self.reduced = None
        self.reduced = self._empty(index, torch.float32)
        size = sum(p.numel() for p in self.unit_parameters[index] if p.requires_grad)
        self.shards.append(torch.empty(-(-size // self.layout.shards), dtype=torch.float32))
        for p in self.unit_parameters[index]:
            p.grad = None
        self.weights.pop(index, None)

    def __enter__(self) -> None:
        for index, unit in enumerate(self.units):
            self.handles += [
                unit.register_forward_pre_hook(lambda *_, i=index: self._before_forward(i)),
                unit.register_forward_hook(lambda *_, i=index: self._after_forward(i)),
                unit.register_full_backward_pre_hook(lambda *_, i=index: self._before_backward(i)),
            ]
            for p in self.unit_parameters[index]:
                if p.requires_grad:
                    self.handles.append(
                        p.register_post_accumulate_grad_hook(
                            lambda _, i=index: self._after_gradient(i)
                        )
                    )

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()
