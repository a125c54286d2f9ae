"""The GPUs that a process on this machine would see, without importing torch."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
COUNT_CODE = "import torch; print(torch.cuda.device_count())"


def visible_devices(
    env: Mapping[str, str] = os.environ, variable: str = VISIBLE
) -> list[str] | None:
    """Return the numbers or names of the visible GPUs, or None if the variable is not set."""
    value = env.get(variable)
    if value is None:
        return None
    return [name for each in value.split(",") if (name := each.strip())]


def count_gpus(env: Mapping[str, str] = os.environ, dev: Path = Path("/dev")) -> int:
    """Count the GPUs of this process.

    Device files and the environment are enough for zero or one. Only torch knows which of several
    it sees (its build, MIG, a container's limits), so a short process imports it.
    """
    count = len([path for path in dev.glob("nvidia*") if path.name[6:].isdigit()])
    # AMD has one file for all GPUs.
    if (dev / "kfd").exists():
        count = max(count, len(list((dev / "dri").glob("renderD*"))))
    for name in (VISIBLE, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        visible = visible_devices(env, name)
        if visible is not None:
            count = min(count, len(visible))
    if count <= 1:
        return count
    done = subprocess.run(
        [sys.executable, "-c", COUNT_CODE], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return int(done.stdout) if done.returncode == 0 else 0
