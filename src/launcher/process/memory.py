"""The memory that a rank can use on this machine."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch

from launcher.process.device import device_type

CGROUPS = Path("/sys/fs/cgroup")


def rank_memory(device: str, local_rank: int, env: Mapping[str, str]) -> int:
    """Return the bytes that a rank has: a GPU's memory, or its share of the machine's.

    Args:
        device: a type of device, or auto.
        local_rank: the number of its GPU.
        env: torchrun's variables, which have the number of ranks of this machine.
    Raises:
        ConfigError: the device is not available.
    """
    kind = device_type(device)
    if kind == "cuda":
        return int(torch.cuda.get_device_properties(local_rank).total_memory)
    if kind == "mps":
        return torch.mps.recommended_max_memory()
    ranks = int(env.get("LOCAL_WORLD_SIZE") or env.get("WORLD_SIZE") or 1)
    return machine_memory() // ranks


def machine_memory(process: Path = Path("/proc/self/cgroup"), cgroups: Path = CGROUPS) -> int:
    """Return the bytes of this machine, or of the cgroup of this process if they are fewer.

    Args:
        process: the file with the cgroups of the process.
        cgroups: where cgroups are mounted.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_limits(process, cgroups)])


def _limits(process: Path, cgroups: Path) -> Iterator[int]:
    """The limits of the cgroups that the process is in, in both versions of their files."""
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        for each in (group, *group.parents):
            # A group without a limit has the text `max`. A container sees other paths than its own.
            with suppress(OSError, ValueError):
                yield int((root / each / name).read_text())
