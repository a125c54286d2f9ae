"""Find out what started this process: a user, or torchrun or srun with all ranks."""

import os
import re
from collections.abc import Mapping, MutableMapping

from launcher.errors import ConfigError
from launcher.process.gpus import visible_devices
from launcher.process.process_id import RANK, WORLD_SIZE
from launcher.process.rendezvous_port import MEETING, port_of


def join_ranks(env: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether this process is one of several ranks that are already started.

    The variables of a SLURM step with several tasks are translated into torchrun's. A batch script
    that calls us without srun is not such a step, however many tasks its job has. A command that is
    typed in a shell of `srun --pty` is none of the tasks either.
    """
    tasks = _number_of(env, "SLURM_STEP_NUM_TASKS", "1")
    if RANK not in env and tasks > 1 and not _is_typed_in_task(env):
        _translate(env)
    # `check_ranks` rejects everything but a number.
    return RANK in env and env.get(WORLD_SIZE, "1") not in ("0", "1")


def _is_typed_in_task(env: Mapping[str, str]) -> bool:
    """Return whether this process was started from the terminal of a task, and is not the task.

    The other tasks are shells without a terminal, which have ended, so no other rank will come.
    """
    return "SLURM_PTY_PORT" in env and env.get("SLURM_TASK_PID") != str(os.getpid())


def check_ranks(env: Mapping[str, str] = os.environ) -> None:
    """Check the variables of torchrun, which may be left over from another command."""
    world_size = _number_of(env, WORLD_SIZE, "1")
    rank = _number_of(env, RANK, "0")
    _number_of(env, "LOCAL_RANK", "0")
    if world_size == 0:
        raise ConfigError("WORLD_SIZE='0' in the environment: should be at least 1; unset it.")
    missing = [name for name in (RANK, "MASTER_ADDR", "MASTER_PORT") if name not in env]
    if rank >= world_size or (world_size > 1 and missing):
        without = f", without {', '.join(missing)}" if missing else ""
        raise ConfigError(
            f"RANK={rank} and WORLD_SIZE={world_size} in the environment{without}: left over from"
            " another command; unset both, and use dispatch.nproc=N for N ranks."
        )


def _number_of(env: Mapping[str, str], name: str, default: str | None = None) -> int:
    """Return the number in a variable; without a default, the variable must exist."""
    value = env.get(name, default)
    if value is None:
        raise ConfigError(
            f"SLURM_STEP_NUM_TASKS={env['SLURM_STEP_NUM_TASKS']} in the environment, without"
            f" {name}: left over from another command; unset it."
        )
    if not (value.isascii() and value.isdecimal()):
        raise ConfigError(f"{name}='{value}' in the environment: should be a number; unset it.")
    return int(value)


def _translate(env: MutableMapping[str, str]) -> None:
    local = _number_of(env, "SLURM_LOCALID")
    rank = _number_of(env, "SLURM_PROCID")
    devices = visible_devices(env)
    if devices:
        # A task bound to its own GPU sees only this GPU.
        local %= len(devices)
    env[RANK], env[WORLD_SIZE] = str(rank), env["SLURM_STEP_NUM_TASKS"]
    env["LOCAL_RANK"] = str(local)
    tasks = tasks_of_nodes(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number_of(env, "SLURM_NODEID", "0")
    if node < len(tasks):
        env["LOCAL_WORLD_SIZE"] = str(tasks[node])
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "localhost"
    env.setdefault("MASTER_ADDR", first_node(nodes))
    # The port of srun makes it differ between launches, and from a job with the same id of another
    # cluster on this host.
    names = ("SLURM_SRUN_COMM_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")
    job = " ".join(env.get(name, "") for name in names)
    if "MASTER_PORT" not in env:
        env["MASTER_PORT"] = str(port_of(job))
        env[MEETING] = job


def tasks_of_nodes(text: str) -> list[int]:
    """Return the number of tasks of each node in SLURM's notation: `2(x3),1` -> [2, 2, 2, 1]."""
    repeated = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, nodes in repeated for _ in range(int(nodes or 1))]


def first_node(nodes: str) -> str:
    """Return the first host of SLURM's notation: `gpu[03-07,12],cpu1` -> `gpu03`."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    assert match is not None, nodes
    return "".join(filter(None, match.groups()))
