"""Exponential moving averages of the weights."""

from collections.abc import Sequence, Set
from typing import ClassVar, Literal

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from launcher.config.schema.matters_from import Pair
from launcher.config.tree import Node
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook
from launcher.hooks.state import reject_flat_buffers
from launcher.hooks.view import State, TrainerView
from launcher.process.device import parse_device
from launcher.strategies.base import TensorReader, Tensors
from launcher.strategies.sharded import ShardedLike, is_sharded, local
from launcher.strategies.weights import model_tensors, unwrap
from launcher.types import Fraction, NonNegativeInt, PositiveInt


def before_an_average(one: Node, other: Node, pair: Pair) -> int:
    """Return the first steps in which both averages are the initial weights, or a copy."""
    first = []
    for node in (one, other):
        start = node.get("start")
        interval = int(node.get("interval", 1))
        copies = 0 if start == "initial" else 1
        if type(start) is int:
            copies = max(1, start // interval)
        first.append((copies + 1) * interval)
    return min(first) - 1


class EmaHook(BaseHook):
    """Averages the weights (Polyak and Juditsky 1992).

    After each step, average = decay * average + (1 - decay) * weights.

    The averages cover the parameters that are trainable when the run starts; the others are used as
    they are, also if they are unfrozen later. The averages are sharded like the weights, in float32
    if the weights have 16 bits, and are part of each checkpoint.

    Args:
        decay: decay per optimizer step. Each of several decays has its own average.
        use_buffers: also average buffers of real or complex numbers. Otherwise an average is used
            with the model's current buffers.
        name: prefix of the averages in a checkpoint, `<name>/<decay>/<parameter>`.
        interval: steps between updates. The decay of an update is then decay^interval.
        warmup: limit the decay of update n to (1 + n) / (warmup + n), so that the initial weights
            are soon forgotten. With 0, no warm-up.
        device: device of the averages, such as cpu. Default None: the device of the weights.
        start: with "first_update", the first update copies the weights, as in torch's
            `AveragedModel`. With "initial", it averages them with the initial weights. With a
            number, each update up to this step copies them.
        evaluate: evaluate the average of the first decay instead of the weights. `val/` metrics,
            the best checkpoint and early stopping then use the average.

    Examples:
        >>> class Averaging(Line):
        ...     def build_hooks(self):
        ...         return [EmaHook(decay=0.9), CheckpointingHook(interval=2)]
        >>> Averaging(max_steps=2, device="cpu", workspace="average").train()
    """

    provides = ("ema",)
    needs: ClassVar = {"evaluate=true": "evaluation", "evaluate=false": "checkpointing"}
    matters_from: ClassVar = {"start": before_an_average}

    def __init__(
        self,
        decay: Fraction | list[Fraction] = 0.999,
        use_buffers: bool = False,
        name: str = "ema",
        interval: PositiveInt = 1,
        warmup: NonNegativeInt = 0,
        device: str | None = None,
        evaluate: bool = False,
        start: Literal["first_update", "initial"] | PositiveInt = "first_update",
    ):
        self.decays = list(map(float, decay if isinstance(decay, Sequence) else [decay]))
        are_distinct = 0 < len(self.decays) == len(set(self.decays))
        if not are_distinct or not all(0 <= value <= 1 for value in self.decays):
            raise ConfigError(
                f"hooks.ema.decay={decay}: must be one or several different numbers from 0 to 1."
            )
        if not name or "/" in name or name in ("model", "optimizer"):
            raise ConfigError(
                f"hooks.ema.name={name}: must be a word other than model and optimizer; e.g. ema."
            )
        self.use_buffers = use_buffers
        self.name = name
        self.interval = interval
        self.warmup = warmup
        self.start = start
        self.device = parse_device(device) if device is not None else None
        self.evaluate = evaluate
        self._updates = 0
        self._updated_at = 0
        self._model: torch.nn.Module
        self._weights: Tensors = {}
        self._averages: dict[float, list[torch.Tensor]] = {}
        self._restored: set[str] = set()
        self._kept: list[torch.Tensor] = []
        self._module: AveragedModel | None = None

    # ------------------------------------------------------------------------------------ averaging
    def on_start(self, trainer: TrainerView) -> None:
        reject_flat_buffers(trainer, "hooks.ema", "averages")
        others = [hook for hook in trainer.hooks if isinstance(hook, EmaHook) and hook is not self]
        if self.evaluate and any(hook.evaluate for hook in others):
            raise ConfigError(
                "hooks.ema.evaluate=true: only one hook can replace the weights; set the others to"
                " false."
            )

    def _prepare(self, trainer: TrainerView, stored: Set[str] = frozenset()) -> None:
        """Allocate the averages: of the stored names in a checkpoint, or of what is trainable now.

        It runs after every hook's `on_start`, since a hook may change the model there.
        """
        self._model = trainer.model
        self._weights = tensors_to_average(trainer.model, self.use_buffers, stored)
        self._averages = {
            decay: [
                torch.empty_like(shard, dtype=_wide(shard.dtype), device=self.device)
                for shard in self._shards()
            ]
            for decay in self.decays
        }

    def _shards(self) -> list[torch.Tensor]:
        return [local(tensor) for tensor in self._weights.values()]

    def on_before_train(self, trainer: TrainerView) -> None:
        """Set averages that were not restored to the current weights."""
        for name, companion in self.state_tensors(trainer).items():
            if name not in self._restored:
                companion.values.copy_(local(companion.like))

    def on_after_step(self, trainer: TrainerView) -> None:
        if trainer.step == self._updated_at or trainer.step % self.interval:
            return
        self._updated_at = trainer.step
        if isinstance(self.start, int) and trainer.step <= self.start:
            self._updates = 0
        # In the dtype and on the device of the averages.
        pairs = zip(self._shards(), self._averages[self.decays[0]], strict=True)
        weights = [weight.to(average) for weight, average in pairs]
        for decay, averages in self._averages.items():
            get_ema_multi_avg_fn(self._current(decay))(averages, weights, 0)
        self._updates += 1

    def _current(self, decay: float) -> float:
        """Return the decay of the next update."""
        if self._updates == 0 and self.start != "initial":
            return 0.0
        limit = (1 + self._updates) / (self.warmup + self._updates) if self.warmup else 1.0
        return min(decay, limit) ** self.interval

    # ----------------------------------------------------------------------------------- evaluation
    @torch.no_grad()
    def on_evaluation_start(self, trainer: TrainerView) -> None:
        if not self.evaluate:
            return
        # The hook that evaluates may come before this one.
        self.on_after_step(trainer)
        self._kept = [weight.clone() for weight in self._shards()]
        _copy(self._shards(), self._averages[self.decays[0]])

    @torch.no_grad()
    def on_evaluation_end(self, trainer: TrainerView) -> None:
        if self._kept:
            _copy(self._shards(), self._kept)
            self._kept = []

    @property
    def ema_model(self) -> AveragedModel:
        """The model with the average of the first decay, which updates change in place.

        Raises:
            TrainingError: training has not started, or the weights are sharded.
        """
        if not self._weights:
            raise TrainingError("EmaHook.ema_model does not exist: training has not started.")
        if any(map(is_sharded, self._weights.values())):
            raise TrainingError(
                "EmaHook.ema_model does not exist: the weights are sharded; use evaluate=True."
            )
        model = unwrap(self._model)
        if self._module is None:
            self._module = AveragedModel(model, device=self.device)
            inner = self._module.module
            tensors = {**dict(inner.named_parameters()), **dict(inner.named_buffers())}
            for name, average in zip(self._weights, self._averages[self.decays[0]], strict=True):
                tensors[name].data = average
        buffers = zip(self._module.module.named_buffers(), model.buffers(), strict=True)
        for (name, buffer), current in buffers:
            if name not in self._weights:
                buffer.copy_(current)
        return self._module

    # ---------------------------------------------------------------------------------------- state
    def state_tensors(self, trainer: TrainerView) -> dict[str, ShardedLike]:
        if not self._weights:
            self._prepare(trainer)
        return {
            f"{self.name}/{decay!r}/{name}": ShardedLike(average, weight)
            for decay, averages in self._averages.items()
            for (name, weight), average in zip(self._weights.items(), averages, strict=True)
        }

    def load_tensors(self, trainer: TrainerView, saved: TensorReader) -> None:
        stored = {name for name in saved.names() if name.startswith(f"{self.name}/")}
        self._prepare(trainer, {name.split("/", 2)[2] for name in stored})
        tensors = self.state_tensors(trainer)
        self._restored = stored & tensors.keys()
        with saved.concurrent_reads():
            for name in self._restored:
                tensors[name].read(saved, name)
        decays = {name.split("/")[1] for name in self._restored}
        missing = sorted({name.split("/")[1] for name in tensors} - decays)
        if missing:
            trainer.logger.warning(
                "The checkpoint has no average of decay %s: it starts from the current weights.",
                ", ".join(missing),
            )

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        state_dict[self.name] = {"updates": self._updates, "updated_at": self._updated_at}

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        saved = state_dict.get(self.name, {})
        self._updates, self._updated_at = saved.get("updates", 0), saved.get("updated_at", 0)


def tensors_to_average(
    model: torch.nn.Module, use_buffers: bool, chosen: Set[str] = frozenset()
) -> Tensors:
    """Return the chosen real or complex parameters by name, or if none is, the trainable ones.

    With `use_buffers`, the persistent buffers are among them.
    """
    parameters = dict(unwrap(model).named_parameters())
    trained = parameters.keys() & chosen or {n for n, p in parameters.items() if p.requires_grad}
    buffers = {name for name, _ in unwrap(model).named_buffers()} if use_buffers else set()
    tensors = model_tensors(model).items()
    return {
        name: tensor
        for name, tensor in tensors
        if name in trained | buffers and (tensor.is_floating_point() or tensor.is_complex())
    }


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of an average: 16 bits would round a thousandth of a difference away."""
    wide = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
    return (wide | {torch.complex32: torch.complex64}).get(dtype, dtype)


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
