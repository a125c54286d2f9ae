"""A copy of the state in host memory, so that training continues while it is written."""

import threading
from collections.abc import Mapping
from typing import NamedTuple

import torch


class HostBuffers:
    """Buffers that are reused, since new ones cost more in page faults than the copy itself."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._allocation: threading.Thread | None = None

    def allocate(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Allocate in a thread what `copy` needs, so that the first copy is as fast as others."""
        # The thread keeps no tensor alive that training replaces.
        specs = {name: _Spec.of(tensor) for name, tensor in tensors.items()}

        def allocate() -> None:
            for name, spec in specs.items():
                # Memory that is not pinned has its page faults when it is first written.
                self._buffer(name, spec).zero_()

        self._allocation = threading.Thread(target=allocate, name="checkpoint-buffers", daemon=True)
        self._allocation.start()

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return values on the CPU, valid until the next call. It waits once for CUDA."""
        if self._allocation is not None:
            self._allocation.join()
        copies = {
            name: self._buffer(name, _Spec.of(tensor)).copy_(tensor, non_blocking=True)
            for name, tensor in tensors.items()
        }
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.current_stream().synchronize()
        return copies

    def _buffer(self, name: str, spec: "_Spec") -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or (buffer.shape, buffer.dtype) != spec[:2]:
            buffer = torch.empty(spec.shape, dtype=spec.dtype, pin_memory=spec.is_pinned)
            self._buffers[name] = buffer
        return buffer


class _Spec(NamedTuple):
    shape: torch.Size
    dtype: torch.dtype
    is_pinned: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_Spec":
        return cls(tensor.shape, tensor.dtype, tensor.is_cuda)
