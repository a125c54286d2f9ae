"""Many small trainings in one set of processes: starting them costs more than all of the steps.

`ranks.in_turn` runs it. Its arguments are folders, each followed by a number of ranks. A folder has
a `tasks.json`, which lists tasks as [name, arguments]. What the tasks return on each rank goes to
`results-<rank>.json`. The ranks are forked once all configurations are composed.
"""

import gc
import json
import os
import signal
import socket
import sys
import traceback
from inspect import isfunction
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from launcher.process import signals
from support import collates, measuring, reloading, spoiling, trainings

TASKS = {
    name: value
    for module in (collates, measuring, reloading, spoiling, trainings)
    for name, value in vars(module).items()
    if isfunction(value)
}


def main() -> None:
    folders = [Path(word) for word in sys.argv[1::2]]
    tasks = [json.loads((folder / "tasks.json").read_text()) for folder in folders]
    for _, arguments in chain(*tasks):
        if all(isinstance(override, str) for override in arguments.get("overrides", [])):
            trainings.compose(*arguments.get("overrides", []))
    gc.freeze()
    for folder, count, of_folder in zip(folders, sys.argv[2::2], tasks, strict=True):
        run(folder, int(count), of_folder)


def run(folder: Path, count: int, tasks: list[tuple[str, dict[str, Any]]]) -> None:
    """Start the ranks, and wait for them. If one of them fails, the others end."""
    pids = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for rank in range(count):
            if (pid := os.fork()) == 0:
                os.environ.update(environment(rank, count, listening))
                listening.detach() if rank == 0 else listening.close()
                work(folder, tasks)
                sys.exit()
            pids.append(pid)
    while pids:
        pid, status = os.wait()
        pids.remove(pid)
        if code := os.waitstatus_to_exitcode(status):
            for other in pids:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"A rank has ended with code {code}.")


def environment(rank: int, count: int, listening: socket.socket) -> dict[str, str]:
    """Variables that launcher's own spawner sets for a rank."""
    env = {
        "LAUNCHER_PARENT": str(os.getppid()),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listening.getsockname()[1]),
    }
    return env | {"LAUNCHER_LISTEN_FD": str(listening.fileno())} if rank == 0 else env


def work(folder: Path, tasks: list[tuple[str, dict[str, Any]]]) -> None:
    """Do the tasks as one rank."""
    signals.install()
    torch.set_num_threads(1)
    results = []
    for name, arguments in tasks:
        try:
            results.append(TASKS[name](**arguments))
        except BaseException:
            rank = os.environ["RANK"]
            text = f"rank {rank}: {name} {arguments}\n{traceback.format_exc()}"
            print(text, file=sys.stderr, flush=True)
            os._exit(1)
    (folder / f"results-{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
