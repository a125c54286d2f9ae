"""A copy of the state in host memory, so that training continues while it is written."""

from collections.abc import Mapping

import torch


class HostBuffers:
    """Buffers that are reused, since new ones cost more in page faults than the copy itself."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return values on the CPU, valid until the next call. It waits once for CUDA."""
        copies, on_device = {}, False
        for name, tensor in tensors.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                pin = tensor.device.type == "cuda"
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pin)
                self._buffers[name] = buffer
            on_device |= tensor.device.type == "cuda"
            copies[name] = buffer.copy_(tensor, non_blocking=True)
        if on_device:
            torch.cuda.current_stream().synchronize()
        return copies
