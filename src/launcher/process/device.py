"""Which device a process computes on."""

import torch

from launcher.errors import ConfigError


def device_type(wanted: str = "auto") -> str:
    """`auto` is the first that is available of cuda, mps and cpu.

    Raises:
        ConfigError: another device is wanted and not available.
    """
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
    """The device of one rank of this machine; makes a CUDA device the current one.

    Raises:
        ConfigError: there are fewer devices than ranks.
    """
    kind = device_type(wanted)
    if kind != "cuda":
        return torch.device(kind)
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"dispatch.nproc: rank {local_rank} of this machine has no GPU of its own ({count}"
            f" visible); use dispatch.nproc={count} or device=cpu."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    torch.cuda.init()  # else the state of its generator would not be saved
    return device


def parse_device(device: torch.device | str | int | None) -> torch.device:
    """
    Returns:
        The device of that name or number; torch's default device for None.
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


def device_name(device: torch.device) -> str:
    return f"{device} ({device_kind(device)})" if device.type == "cuda" else str(device)


def device_kind(device: torch.device) -> str:
    """The name of a GPU, else the type of the device: cpu, mps."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
