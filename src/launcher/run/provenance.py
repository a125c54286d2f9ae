"""Where a run's numbers come from: the code's commit, the libraries' versions, the SLURM job."""

import os
import subprocess
import sys
from importlib import metadata
from typing import Any

# Module and distribution of what may change a run's numbers. Named only if imported: not every run uses them.
VERSIONED = {
    "torch": "torch",
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "numpy": "numpy",
    "deepspeed": "deepspeed",
    "transformers": "transformers",
}


def slurm_job_id() -> str | None:
    """The SLURM job this process belongs to, an array's task as `1234_5`; None outside SLURM."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def git_state(folder: str | os.PathLike[str], timeout: float = 2.0) -> dict[str, Any] | None:
    """{"commit": hash, "dirty": bool} of the repository around `folder`; None without one, without git, or
    past `timeout` seconds. Untracked files do not count as dirty. Never raises.
    """
    command = [
        "git",
        "status",
        "--porcelain=v2",
        "--branch",
        "--untracked-files=no",
        "--ignore-submodules=dirty",
    ]
    try:
        # Optional locks off: a run must not disturb a commit that its user makes at the same time.
        found = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if found.returncode != 0:
        return None
    commit, dirty = None, False
    for line in found.stdout.splitlines():
        if line.startswith("# branch.oid "):
            commit = line.split()[-1]
        elif line and not line.startswith("#"):
            dirty = True
    return None if commit in (None, "(initial)") else {"commit": commit, "dirty": dirty}


def versions() -> dict[str, str]:
    """Versions of Python, this package, and those imported libraries that may change a run's numbers."""
    found = {"python": sys.version.split()[0]}
    names = {"launcher": "torch-launcher", **{m: d for m, d in VERSIONED.items() if m in sys.modules}}
    for module, distribution in names.items():
        try:
            found[module] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue  # run from a bare checkout
    return found
