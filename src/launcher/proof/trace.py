"""Traces of a training: checksums of what each step reads and computes, and its parts' state."""

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from launcher.hooks.base import BaseHook
from launcher.hooks.view import TrainerView
from launcher.jobs.check import name_tensors
from launcher.process.object_marks import iterator_parts
from launcher.process.object_walk import is_iterator, is_leaf, is_named, parts_of, reach
from launcher.process.rng import get_generator_state, is_generator, rng_state
from launcher.proof.diff import GRADIENTS, LOSS, RANDOM, SAMPLES, USER_PARTS, WEIGHTS
from launcher.resume.unstored import roots, stored_in_model
from launcher.strategies.checksum import checksum
from launcher.strategies.weights import unwrap

NUMBERS = (bool, int, float, np.generic, itertools.count)
VALUES = (*NUMBERS, str, bytes, torch.Tensor, np.ndarray, type(None))
DEPTH = 6
MAX_TEXT_LENGTH = 80


class TraceHook(BaseHook):
    """Appends lines for each step to `<folder>/rank-<r>.jsonl`.

    Args:
        folder: must exist.
    """

    needs_gradients = False

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self._line: dict[str, Any] = {}

    def on_ready(self, trainer: TrainerView) -> None:
        self._write(trainer, {USER_PARTS: user_parts(trainer)})

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
        self._write(trainer, {USER_PARTS: user_parts(trainer)})

    def _write(self, trainer: TrainerView, line: dict[str, object]) -> None:
        with open(self.folder / f"rank-{trainer.strategy.ranks.rank}.jsonl", "a") as file:
            file.write(json.dumps({"step": trainer.step, **line}) + "\n")


def user_parts(trainer: TrainerView) -> dict[str, str]:
    """Describe the state of what a user writes, by path, without the tensors of a checkpoint."""
    stored = stored_in_model(trainer)
    return {
        place.path: plain(place.value)
        for place in reach(roots(trainer), parts_of)
        if is_leaf(place.value) and not (stored.has(place) or is_named(place.value))
    }


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
    if is_generator(value):
        return f"generator {_text(get_generator_state(value), depth + 1)}"
    if depth > DEPTH:
        return type(value).__name__
    if isinstance(value, Mapping):
        items = (f"{key!r}: {_text(item, depth + 1)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_text(item, depth + 1) for item in value))}}}"
    if isinstance(value, list | tuple | deque):
        return f"[{', '.join(_text(item, depth + 1) for item in value)}]"
    if is_iterator(value):
        return repr(iterator_parts(value))
    if isinstance(value, VALUES):
        return repr(value)
    return type(value).__name__


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
