"""The device on which a process computes."""

import re

import torch

from launcher.errors import ConfigError


def device_type(wanted: str = "auto") -> str:
    """Return the type of a device; `auto` is the first available one of cuda, mps and cpu."""
    is_available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    available = [name for name in is_available if is_available[name]]
    if wanted == "auto":
        return available[0]
    if wanted not in available:
        names = ", ".join(available)
        raise ConfigError(
            f"device={wanted}: not available on this machine; use device=auto or one of: {names}."
        )
    return wanted


def get_device(local_rank: int = 0, wanted: str = "auto") -> torch.device:
    """Return the device of one rank of this machine, and make a CUDA device the current one."""
    type_name = device_type(wanted)
    if type_name != "cuda":
        return torch.device(type_name)
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"dispatch.nproc: rank {local_rank} of this machine has no GPU of its own ({count}"
            f" visible); use dispatch.nproc={count} or device=cpu."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    # Without this call the state of the device's generator would not be saved.
    torch.cuda.init()
    return device


def parse_device(device: torch.device | str | int | None) -> torch.device:
    """Return a device by its name or number, or torch's default device for None.

    Raises:
        ValueError: torch has no such device.
    """
    if device is None:
        return torch.get_default_device()
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device={device!r}: should be a device of torch: 'cpu', 'cuda', 'cuda:1', 'mps'."
        ) from error


def cpu_kernels() -> dict[str, str]:
    """Return what chooses torch's kernels on the CPU: instructions, and library of products."""
    library = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "blas": "unknown" if library is None else library[1],
    }


def device_name(device: torch.device) -> str:
    """Return a device as torch writes it, with the name of a GPU: `cuda:0 (NVIDIA H200)`."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"
