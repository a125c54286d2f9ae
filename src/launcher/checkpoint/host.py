"""A copy of the state in host memory, so that training continues while it is written."""

import threading
from collections.abc import Mapping

import torch

Tensors = Mapping[str, Mapping[str, torch.Tensor]]
"""Tensors by file and name."""


class HostBuffers:
    """Buffers that are reused, since new ones cost more in page faults than the copy itself."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], torch.Tensor] = {}
        self._allocation: threading.Thread | None = None

    def allocate(self, tensors: Tensors) -> None:
        """Allocate in a thread what `copy` needs, so that the first copy is as fast as others."""
        # The thread keeps no tensor alive that training replaces.
        specs = {
            (file, name): (tensor.shape, tensor.dtype, tensor.is_cuda)
            for file, group in tensors.items()
            for name, tensor in group.items()
        }

        def allocate() -> None:
            for key, (shape, dtype, is_pinned) in specs.items():
                # Memory that is not pinned has its page faults when it is first written.
                self._buffer(key, shape, dtype, is_pinned).zero_()

        self._allocation = threading.Thread(target=allocate, name="checkpoint-buffers", daemon=True)
        self._allocation.start()

    def copy(self, tensors: Tensors) -> dict[str, Mapping[str, torch.Tensor]]:
        """Return values on the CPU, valid until the next call. It waits once for CUDA."""
        if self._allocation is not None:
            self._allocation.join()
        copies: dict[str, Mapping[str, torch.Tensor]] = {
            file: {
                name: self._buffer((file, name), tensor.shape, tensor.dtype, tensor.is_cuda).copy_(
                    tensor, non_blocking=True
                )
                for name, tensor in group.items()
            }
            for file, group in tensors.items()
        }
        if any(tensor.is_cuda for group in tensors.values() for tensor in group.values()):
            torch.cuda.current_stream().synchronize()
        return copies

    def _buffer(
        self, key: tuple[str, str], shape: torch.Size, dtype: torch.dtype, is_pinned: bool
    ) -> torch.Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or (buffer.shape, buffer.dtype) != (shape, dtype):
            buffer = torch.empty(shape, dtype=dtype, pin_memory=is_pinned)
            self._buffers[key] = buffer
        return buffer
