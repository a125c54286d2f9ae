"""Cost of `trainer.lanes`, for the default gpt, on one rank and on two.

It is compared with as many micro-batches whose gradients are accumulated.
"""

import json
import os
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpt import composed, peak
from benchmarks.measure import Benchmark, Figure
from benchmarks.turns import Loader, Turns

LANES = 8
BATCH = 32
RANKS = 2
TODAY, WITH_LANES = f"{LANES} micro-batches", f"trainer.lanes={LANES}"
SETTINGS = [f"data.batch_size={BATCH}", "data.seq_len=128"]
CONTENDERS = {
    TODAY: f"trainer.micro_batch_size={BATCH // LANES}",
    WITH_LANES: f"trainer.lanes={LANES}",
}
WARM_UP, COUNTED = 2, 2
"""Steps."""
TCP_INFO, BYTES_SENT = 11, 200
"""An option of a socket in Linux, and where its answer has that number."""


def trained(
    setting: str, steps: int, batches: Callable[[Any], Iterator[Any]], strategy: str = "none"
) -> None:
    trainer, folder = composed([*SETTINGS, setting], steps, hooks="[]", strategy=strategy)
    trainer.data_loader = Loader(trainer.data_loader, batches)
    trainer.train()
    trainer.strategy.teardown()
    folder.cleanup()


def step(setting: str, quick: bool) -> Figure:
    """CPU milliseconds a step."""
    turns = Turns(quick)
    trained(setting, turns.steps + 1, partial(turns.batches, micro_batches=LANES))
    return turns.milliseconds


def memory(setting: str, quick: bool) -> float:
    trainer, folder = composed([*SETTINGS, setting], WARM_UP + COUNTED, hooks="[]")
    figure = peak(trainer.train)
    folder.cleanup()
    return figure


def bytes_sent() -> int:
    """The total of this process's open TCP connections (Linux)."""
    total = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256)
            total += struct.unpack_from("Q", info, BYTES_SENT)[0]
        except OSError:  # another kind of socket, or closed by now
            continue
    return total


def traffic(strategy: str, setting: str, quick: bool) -> Figure:
    """Megabytes a step, the mean of the ranks."""
    from launcher.dispatch.spawner import Spawner

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "work.json").write_text(json.dumps([strategy, setting]))
        spawner = Spawner([sys.executable, "-m", "benchmarks.lanes"], RANKS, Path(name))
        spawner.run()
        if any(codes := [child.process.returncode for child in spawner.ranks]):
            raise RuntimeError(f"the ranks ended with {codes}")
        figures = [float(path.read_text()) for path in Path(name).glob("sent-*")]
    return sum(figures) / RANKS / 1e6


def rank(folder: Path) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # as it was before the spawner blocked some
    strategy, setting = json.loads((folder / "work.json").read_text())
    counts: list[int] = []

    def between(loader: Any) -> Iterator[Any]:
        per_rank = LANES // RANKS
        for number, batch in enumerate(loader):
            if number in (WARM_UP * per_rank, (WARM_UP + COUNTED) * per_rank):
                counts.append(bytes_sent())
            yield batch

    trained(setting, WARM_UP + COUNTED + 1, between, strategy)
    sent = (counts[1] - counts[0]) / COUNTED
    (folder / f"sent-{os.environ['RANK']}").write_text(str(sent))
    os._exit(0)  # gloo's threads may wait forever for a rank that has left


def benchmark(
    name: str, title: str, unit: str, measure: Callable[..., Figure], **more: Any
) -> Benchmark:
    contenders = {name: partial(measure, setting) for name, setting in CONTENDERS.items()}
    return Benchmark(
        name, f"The default gpt, batch {BATCH} x 128 tokens: {title}", unit, contenders, **more
    )


BENCHMARKS = [
    benchmark(
        "lanes",
        "a step on one rank",
        "CPU ms a step",
        step,
        goals={WITH_LANES: 1.03},
        takes_turns=True,
    ),
    benchmark("lanes_memory", "the most memory of one rank", "MiB", memory),
    benchmark(
        "lanes_ddp",
        f"strategy=ddp on {RANKS} ranks",
        "MB sent a step and rank",
        partial(traffic, "ddp"),
        repeats=1,
    ),
    benchmark(
        "lanes_fsdp",
        f"strategy=fsdp on {RANKS} ranks",
        "MB sent a step and rank",
        partial(traffic, "fsdp"),
        repeats=1,
    ),
]

if __name__ == "__main__":
    rank(Path(sys.argv[-1]))
