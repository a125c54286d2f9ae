"""Which device a process computes on."""

import torch

from launcher.errors import ConfigError


def device_type(wanted: str = "auto") -> str:
    """`auto` is cuda, then mps, then cpu; anything else must be there.

    Raises:
        ConfigError: the device asked for is not available.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return next(name for name, is_here in available.items() if is_here)
    if not available.get(wanted, False):
        names = ", ".join(name for name, is_here in available.items() if is_here)
        raise ConfigError(f"device={wanted}: not available on this machine; take device=auto or one of: {names}.")
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
            f"dispatch.nproc: rank {local_rank} of this machine has no GPU of its own ({count} visible); "
            f"take dispatch.nproc={count} or device=cpu."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    torch.cuda.init()  # or the generator would not be among those whose state is kept
    return device
