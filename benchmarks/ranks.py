"""Many ranks on one machine: the time to meet, to agree on a signal, and to save.

The model is tiny.

python benchmarks/ranks.py --ranks 2 8 32 64

The last rank alone gets SIGTERM in the middle of a step. `agree` is one agreement, as each step
makes it; `stop` is from the signal to the end of training on the slowest rank, its step and the
save included; `commit` is the save alone.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from launcher import BaseHook, BaseTrainer, CheckpointingHook
from launcher.dispatch.node_process import IMPORTS
from launcher.process import ranks, signals

LAST_STEP = 1000
SIGNAL_AT = 5
AGREEMENTS = 50


class Watch(BaseHook):
    """Sends the signal, and measures the save that follows."""

    sent = 0.0
    started = 0.0

    def on_before_optimizer_step(self, trainer: Any) -> None:
        if trainer.step == SIGNAL_AT:
            ranks.all_gather(0)
            self.sent = time.perf_counter()
            if ranks.rank() == ranks.world_size() - 1:
                os.kill(os.getpid(), signal.SIGTERM)

    def on_step_boundary(self, trainer: Any) -> None:
        self.started = time.perf_counter()


class Tiny(BaseTrainer):
    def build_data_loader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=4)

    def build_model(self) -> torch.nn.Module:
        return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def build_hooks(self) -> list[BaseHook]:
        self.watch = Watch()
        return [self.watch, CheckpointingHook(LAST_STEP)]

    def forward(self, input: Any) -> Any:
        return self.model(input).mean(), {}


def rank_main(rank: int, count: int, folder: Path, listening: socket.socket, began: float) -> None:
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": listening.getsockname()[1]}
    environment |= {ranks.PARENT: os.getppid()} | (
        {ranks.LISTEN_FD: listening.fileno()} if rank == 0 else {}
    )
    os.environ |= {name: str(value) for name, value in environment.items()}
    torch.set_num_threads(1)
    signals.install()
    ranks.join(torch.device("cpu"))
    trainer = Tiny(max_steps=LAST_STEP, device="cpu", workspace=folder)
    trainer.build()
    met = time.perf_counter()
    agreement, taken = ranks.Agreement(), []
    for _ in range(AGREEMENTS):
        start = time.perf_counter()
        agreement.begin(0)
        agreement.result(0)
        taken.append(time.perf_counter() - start)
    try:
        trainer.train()
    except signals.SignalExit:
        pass
    end = time.perf_counter()
    assert SIGNAL_AT <= trainer.step < LAST_STEP and (folder / "checkpoints" / "latest").exists()
    watch = trainer.watch
    values = [met - began, median(taken), end - watch.sent, end - watch.started]
    gathered = torch.tensor(ranks.all_gather(values))
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(gathered.max(0).values.tolist()))
    ranks.leave()


def measure(count: int) -> list[float]:
    """Return the seconds of the slowest rank, by phase.

    The phases are the time until all have met, an agreement, from the signal to the end, and the
    save.
    """
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as listening:
        context, began = multiprocessing.get_context("fork"), time.perf_counter()
        arguments = count, Path(name), listening, began
        processes = [
            context.Process(target=rank_main, args=(rank, *arguments)) for rank in range(count)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        codes = {process.exitcode for process in processes}
        if codes != {0}:
            raise SystemExit(f"{count} ranks ended with {codes}")
        result: list[float] = json.loads((Path(name) / "result.json").read_text())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 32, 64])
    arguments = parser.parse_args()
    # The ranks of a machine are forked from a process that has imported these.
    for name in IMPORTS:
        importlib.import_module(name)
    print("ranks     meet      agree       stop     commit")
    for count in arguments.ranks:
        met, agreed, stopped, committed = measure(count)
        print(
            f"{count:5} {met:7.2f}s {1e3 * agreed:8.2f}ms {stopped:9.2f}s {committed:9.2f}s",
            flush=True,
        )


if __name__ == "__main__":
    main()
