"""Counts the memory of a real step, tensor by tensor."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.strategies.sharded import local


class CountedBytes(TorchDispatchMode):
    """The bytes of all tensors that are made while it is active; a storage may change its size, as
    FSDP2's do."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._storages: dict[int, Any] = {}

    def total(self) -> int:
        found = [(key, ref()) for key, ref in list(self._storages.items())]
        for key, storage in found:
            if storage is None:
                self._storages.pop(key, None)
        return sum(storage.nbytes() for _, storage in found if storage is not None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else [output]:
            if isinstance(tensor, torch.Tensor):
                storage = local(tensor).untyped_storage()
                self._storages[id(storage)] = weakref.ref(storage)
        self.peak = max(self.peak, self.total())
        return output
