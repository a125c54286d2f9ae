"""Traces of a training: checksums of what each step reads and computes, and its parts' state."""

import hashlib
import itertools
import json
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from launcher.hooks.base import BaseHook
from launcher.hooks.view import TrainerView
from launcher.jobs.check import name_tensors
from launcher.process.rng import rng_state
from launcher.proof.diff import GRADIENTS, LOSS, RANDOM, SAMPLES, USER_PARTS, WEIGHTS
from launcher.strategies.checksum import checksum
from launcher.strategies.weights import unwrap

LIBRARIES = {"launcher", "torch", "numpy", "hydra", "builtins", "logging", "threading"}
LIBRARIES |= {"collections", "functools"}
"""Packages whose objects have state of their own that says nothing: counters, caches, times."""
HOLDERS = "torch.utils.data."
"""Loaders, samplers and subsets, in which a user's object may be, or a generator."""
GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
CONTAINERS = (Mapping, Sequence, set, frozenset, deque)
NUMBERS = (bool, int, float, np.generic, itertools.count)
VALUES = (*NUMBERS, str, bytes, torch.Tensor, np.ndarray, type(None))
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
DEPTH = 6
MAX_TEXT_LENGTH = 80


class TraceHook(BaseHook):
    """Appends lines for each step to `<folder>/rank-<r>.jsonl`.

    Args:
        folder: must exist.
    """

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self._line: dict[str, Any] = {}

    def on_ready(self, trainer: TrainerView) -> None:
        self._write(trainer, {USER_PARTS: parts_of(trainer)})

    def on_before_step(self, trainer: TrainerView) -> None:
        self._line = {
            RANDOM: {name: plain(state) for name, state in rng_state().items()},
            SAMPLES: [],
        }

    def on_batch(self, trainer: TrainerView, batch: Any) -> None:
        tensors = [tensor for _, tensor in name_tensors(batch)]
        self._line[SAMPLES].append([int(checksum([tensor])) for tensor in tensors])

    def on_before_optimizer_step(self, trainer: TrainerView) -> None:
        named = unwrap(trainer.model).named_parameters()
        gradients = self._line.setdefault(GRADIENTS, {})
        for name, p in named:
            if p.grad is not None:
                gradients[name] = int(checksum([p.grad]))

    def on_after_step(self, trainer: TrainerView) -> None:
        self._line[LOSS] = [float(loss).hex() for loss in trainer.step_info["loss"]]
        named = unwrap(trainer.model).named_parameters()
        self._line[WEIGHTS] = {name: int(checksum([p])) for name, p in named}
        # The line is written here, since a boundary may end the training before this hook's turn.
        self._write(trainer, self._line)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        self._write(trainer, {USER_PARTS: parts_of(trainer)})

    def _write(self, trainer: TrainerView, line: dict[str, object]) -> None:
        with open(self.folder / f"rank-{trainer.strategy.ranks.rank}.jsonl", "a") as file:
            file.write(json.dumps({"step": trainer.step, **line}) + "\n")


def parts_of(trainer: TrainerView) -> dict[str, str]:
    """Describe the plain state of what a user writes: hooks, data, and the model's modules.

    It is in attributes that are neither parameters nor persistent buffers. Hooks of Launcher and
    torch have no entry.
    """
    state: dict[str, str] = {}
    for hook in trainer.hooks:
        state.update(_attributes(f"hook {type(hook).__name__}", hook, set()))
    seen: set[int] = set()
    loader = trainer.data_loader
    for name in ("dataset", "sampler", "batch_sampler"):
        if (part := getattr(loader, name, None)) is not None:
            state.update(_attributes(f"{name} {type(part).__name__}", part, seen))
    state.update(_attributes(f"data loader {type(loader).__name__}", loader, seen))
    model = unwrap(trainer.model)
    stored = set(model.state_dict())
    for name, buffer in model.named_buffers():
        if name not in stored:
            state[f"buffer {name}"] = plain(buffer)
    modules = {id(module) for module in model.modules()}
    for name, module in model.named_modules():
        label = f"module {name or 'model'} ({type(module).__name__})"
        state.update(_attributes(label, module, modules - {id(module)}))
    return state


def _attributes(
    name: str, part: object, seen: set[int], depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Describe the attributes of a part, and of the objects in them. A holder has no own state."""
    is_holder = type(part).__module__.startswith(HOLDERS)
    is_foreign = _is_library(part) and not is_holder
    if id(part) in seen or depth > DEPTH or isinstance(part, type) or is_foreign:
        return
    seen.add(id(part))
    for key, value in getattr(part, "__dict__", {}).items():
        # `fully_shard` gives modules attributes with random names that begin with "__".
        if isinstance(part, nn.Module) and (key in MODULE_ATTRIBUTES or key.startswith("__")):
            continue
        if not isinstance(value, (*VALUES, *CONTAINERS, *GENERATORS)):
            yield from _attributes(f"{name}.{key}", value, seen, depth + 1)
        elif not is_holder or isinstance(value, GENERATORS):
            yield f"{name}.{key}", plain(value)


def _is_library(part: object) -> bool:
    return type(part).__module__.partition(".")[0] in LIBRARIES


def plain(value: Any) -> str:
    """Return a number, or a digest of anything large: a short text, equal only for equal values."""
    text = _text(value)
    if len(text) <= MAX_TEXT_LENGTH:
        return text
    return f"{type(value).__name__} {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _text(value: object, depth: int = 0) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor {list(value.shape)} {int(checksum([value])) % 2**64:016x}"
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"array {list(value.shape)} {_digest(value.tobytes())}"
    if isinstance(value, GENERATORS):
        return f"generator {_text(_state_of(value), depth + 1)}"
    if depth > DEPTH:
        return type(value).__name__
    if isinstance(value, Mapping):
        items = (f"{key!r}: {_text(item, depth + 1)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_text(item, depth + 1) for item in value))}}}"
    if isinstance(value, list | tuple | deque):
        return f"[{', '.join(_text(item, depth + 1) for item in value)}]"
    return repr(value) if isinstance(value, VALUES) else type(value).__name__


def _state_of(generator: Any) -> object:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return _digest(repr(generator.getstate()).encode())
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
