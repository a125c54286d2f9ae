"""A copy of the state in host memory, so that training continues while it is written."""

from collections.abc import Mapping

import torch

Tensors = Mapping[str, Mapping[str, torch.Tensor]]
"""Tensors by file and name."""


class HostBuffers:
    """Buffers that are reused, since new ones cost more in page faults than the copy itself."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], torch.Tensor] = {}

    def copy(self, tensors: Tensors) -> dict[str, Mapping[str, torch.Tensor]]:
        """Return values on the CPU, valid until the next call. It waits once for CUDA."""
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
