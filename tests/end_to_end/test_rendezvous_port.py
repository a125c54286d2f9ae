"""Ranks that were given no port find rank 0."""

import os
import socket
from collections.abc import Callable

from launcher.process.rendezvous_port import port_of
from support import python
from support.runner import ENVIRONMENT

RANK = """
import sys

from launcher.dispatch.environment import join_ranks
from launcher.process import ranks

assert join_ranks()
store, own = ranks.store(120), sys.argv[1]
store.set(own, own)
print(store.get(str(1 - int(own))).decode())
# Rank 0 serves the store until the other has read.
store.set("read", own) if own == "1" else store.get("read")
"""
JOB = str(os.getpid())
STEP = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": JOB}


def met(env: dict[str, str], of_rank: Callable[[str], dict[str, str]]) -> list[str]:
    """Let two ranks meet; return the text that each has read from the other."""
    tasks = [python.start("-c", RANK, rank, env=ENVIRONMENT | env | of_rank(rank)) for rank in "01"]
    texts = [task.communicate()[0] for task in tasks]
    assert [task.wait() for task in tasks] == [0, 0], texts
    return [text.split()[0] for text in texts]


def test_tasks_of_a_step_meet():
    assert met(STEP, task_of_step) == ["1", "0"]


def task_of_step(rank: str) -> dict[str, str]:
    return {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}


def test_ranks_of_torchrun_in_a_job_meet_at_their_own_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    inherited = {"LAUNCHER_MEETING": f"{JOB} around"}
    assert met(env | inherited, lambda rank: {"RANK": rank}) == ["1", "0"]


def test_rank_0_whose_port_is_in_use_says_so():
    port = port_of(f" {JOB} used 0")
    with socket.create_server(("", port)):
        env = STEP | task_of_step("0") | {"SLURM_JOB_ID": f"{JOB} used", "SLURM_STEP_ID": "0"}
        done = python.run("-c", RANK, "0", env=ENVIRONMENT | env)
    assert f"The port {port} of this machine is in use; set MASTER_PORT=" in done.stderr
