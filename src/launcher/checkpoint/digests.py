"""The digests of a checkpoint, by which the chain of a run commits to it.

They are SHA-256: with the instructions for it that processors have, it is twice as fast as BLAKE2.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch

from launcher.checkpoint.shards import as_bytes
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.rundir.history import is_measured

ATTEMPT_SUFFIXES = ("max_steps", "stop_reason", "attempt")
"""Suffixes of the names of values that say how far to train, and do not change the numbers."""
NOTHING: Mapping[str, str] = MappingProxyType({})
BLOCK = 4 << 20
"""Bytes that are hashed between two looks whether to stop."""


def digests_of(checkpoint: Path, hashed: Mapping[str, str] = NOTHING) -> tuple[str, str]:
    """Return the digests of a checkpoint's numbers and of its rest.

    The numbers are equal on any number of ranks, if the training is. Left out is what `runs replay`
    leaves out too: durations, and how far to train.

    Args:
        checkpoint: its folder.
        hashed: what `EarlyDigests` has found of its tensors, which are not read again.
    """
    stored = StoredCheckpoint(checkpoint)
    numbers = hashlib.sha256()
    rest = hashlib.sha256()
    for name in sorted(stored.names()):
        text = hashed.get(name) or _tensor_text(stored.read(name))
        numbers.update(f"{name} {text}\n".encode())
    _update(numbers, "state", stored.meta)
    for rank in range(stored.manifest.world_size):
        _update(rest, f"rank {rank}", stored.rank_state(rank))
    return numbers.hexdigest(), rest.hexdigest()


def is_left_out(name: str) -> bool:
    """Return whether a value of a checkpoint's state depends on the attempt, not the training."""
    return is_measured(name) or name.endswith(ATTEMPT_SUFFIXES)


class EarlyDigests:
    """Digests of full tensors in memory, computed in a thread while they are written to a file.

    The save does not wait for them: what is not hashed at the end of the context is read from the
    disk later, since the memory may be written to again.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self.found: dict[str, str] = {}
        self._tensors, self._is_over = tensors, threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-digests", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _run(self) -> None:
        for name, tensor in self._tensors.items():
            text = _tensor_text(tensor, self._is_over.is_set)
            if self._is_over.is_set():
                return
            self.found[name] = text

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()


def _tensor_text(tensor: torch.Tensor, stops: Callable[[], bool] = lambda: False) -> str:
    digest = hashlib.sha256()
    view = as_bytes(tensor) if tensor.numel() else memoryview(b"")
    for start in range(0, len(view), BLOCK):
        if stops():
            break
        digest.update(view[start : start + BLOCK])
    return f"{tensor.dtype} {tuple(tensor.shape)} {digest.hexdigest()}"


def _update(digest: Any, name: str, value: Any) -> None:
    for text in _leaves(name, value):
        digest.update(f"{text}\n".encode())


def _leaves(name: str, value: Any) -> Iterator[str]:
    """Yield a line for each leaf of a nested state."""
    if is_left_out(name):
        return
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from _leaves(f"{name}/{key}", value[key])
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(f"{name}/{number}", item)
    elif isinstance(value, set | frozenset):
        # The order of a set differs between processes.
        yield f"{name} {sorted(map(repr, value))}"
    elif isinstance(value, torch.Tensor):
        yield f"{name} {_tensor_text(value)}"
    elif isinstance(value, np.ndarray):
        yield f"{name} {_tensor_text(torch.from_numpy(value))}"
    else:
        yield f"{name} {value!r}"
