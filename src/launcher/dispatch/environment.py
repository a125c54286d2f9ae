"""What started this process: torchrun, srun or submitit, which start all ranks themselves, or a person."""

import os
import re
from collections.abc import MutableMapping

PORTS = range(15000, 35000)


def join_ranks(env: MutableMapping[str, str] = os.environ) -> bool:
    """Whether this process is one of several ranks that are started already.

    torchrun's variables are taken as they are; those of a SLURM step with several tasks are translated into them, and
    those of submitit's local executor. A batch script that calls us without srun is no such step, however many tasks
    its job has.
    """
    if "RANK" not in env and env.get("SUBMITIT_EXECUTOR") == "local" and int(env.get("SUBMITIT_LOCAL_NTASKS", 1)) > 1:
        _translate_local(env)
    if "RANK" not in env and int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        _translate(env)
    return "RANK" in env and int(env.get("WORLD_SIZE", 1)) > 1


def _translate(env: MutableMapping[str, str]) -> None:
    local = int(env["SLURM_LOCALID"])
    if devices := [one for one in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]:
        local %= len(devices)  # a task that is bound to its own GPU sees no other
    env["RANK"], env["WORLD_SIZE"] = env["SLURM_PROCID"], env["SLURM_STEP_NUM_TASKS"]
    env["LOCAL_RANK"] = str(local)
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "localhost")
    env.setdefault("MASTER_ADDR", first_node(nodes))
    step = int(env.get("SLURM_JOB_ID", 0)) * 31 + int(env.get("SLURM_STEP_ID", 0))
    env.setdefault("MASTER_PORT", str(PORTS[step % len(PORTS)]))


def _translate_local(env: MutableMapping[str, str]) -> None:
    """submitit's local executor: all tasks on this machine."""
    env["RANK"] = env["LOCAL_RANK"] = env["SUBMITIT_LOCAL_GLOBALID"]
    env["WORLD_SIZE"] = env["SUBMITIT_LOCAL_NTASKS"]
    env.setdefault("MASTER_ADDR", "127.0.0.1")
    env.setdefault("MASTER_PORT", str(PORTS[int(env.get("SUBMITIT_LOCAL_JOB_ID", 0)) % len(PORTS)]))


def first_node(nodes: str) -> str:
    """The first host of SLURM's notation: `gpu[03-07,12],cpu1` -> `gpu03`."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    assert match is not None, nodes
    return "".join(filter(None, match.groups()))
