"""Several ranks for a test, and the results of each of them."""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from support import python
from support.runner import ENVIRONMENT

Task = tuple[str, dict[str, Any]]

LIMIT = 560.0
"""Seconds."""


def together(count: int, folder: Path, tasks: list[Task]) -> list[list[Any]]:
    """Do the tasks (functions of `drive` and their arguments) on `count` ranks; for each task, each
    rank's result."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tasks.json").write_text(json.dumps(tasks))
    outputs = [folder / f"rank-{number}.out" for number in range(count)]
    ranks = []
    preloaded = python.DEEPSPEED if "strategy=deepspeed" in str(tasks) else ()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for number, output in enumerate(outputs):
            with output.open("w") as file:
                env = environment(number, count, listening)
                fds = (listening.fileno(),) if number == 0 else ()
                words = "-m", "support.drive", str(folder)
                ranks.append(
                    python.start(*words, env=env, stdout=file, pass_fds=fds, preloaded=preloaded)
                )
    try:
        wait(ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    wrong = [(number, rank.returncode) for number, rank in enumerate(ranks) if rank.returncode != 0]
    for number, code in sorted(wrong, key=lambda end: end[1] < 0):  # those that we killed come last
        raise AssertionError(f"rank {number}, code {code}:\n{outputs[number].read_text()}")
    results = [
        json.loads((folder / f"results-{number}.json").read_text()) for number in range(count)
    ]
    return [list(of_task) for of_task in zip(*results, strict=True)]


def wait(ranks: list[Any]) -> None:
    """Until all ranks have ended, or one has failed."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        codes = [rank.poll() for rank in ranks]
        if None not in codes or any(codes):
            return
        time.sleep(0.02)


def environment(rank: int, count: int, listening: socket.socket) -> dict[str, str]:
    """Variables that launcher's own spawner sets for a rank."""
    env = {
        **ENVIRONMENT,
        "LAUNCHER_PARENT": str(os.getpid()),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listening.getsockname()[1]),
    }
    return env | {"LAUNCHER_LISTEN_FD": str(listening.fileno())} if rank == 0 else env
