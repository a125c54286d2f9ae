"""How many GPUs a process on this machine would see, without importing torch here."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ASK = "import torch; print(torch.cuda.device_count())"


def count_gpus(env: Mapping[str, str] = os.environ, dev: Path = Path("/dev")) -> int:
    """None or one is told by the device files and the environment. Only torch itself knows what it sees of several (its
    build, MIG, a container's limits), so a process is asked that ends at once."""
    there = len([path for path in dev.glob("nvidia*") if path.name[6:].isdigit()])
    if (dev / "kfd").exists():  # AMD: one file for all of them
        there = max(there, len(list((dev / "dri").glob("renderD*"))))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if name in env:
            there = min(there, len([one for one in env[name].split(",") if one.strip()]))
    if there <= 1:
        return there
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return int(asked.stdout) if asked.returncode == 0 else 0
