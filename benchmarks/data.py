"""Data: loading tokens, resuming deep in a large dataset, large texts, long metrics."""

import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Benchmark, cpu_seconds, status

BATCH, LENGTH = 32, 1024


@contextmanager
def token_file(tokens: int) -> Iterator[Path]:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.npy"
        np.save(path, np.random.default_rng(0).integers(0, 50000, tokens, dtype=np.uint16))
        yield path


def cpu_of_batches(make: Callable[[Path], Iterator[Any]], quick: bool) -> float:
    """CPU milliseconds a batch, workers included."""
    with token_file(2_000_000 if quick else 20_000_000) as path:
        batches, count = make(path), 50 if quick else 1000
        next(batches)
        start = time.process_time() + children()
        for _ in range(count):
            next(batches)
        if hasattr(batches, "close"):
            batches.close()
        del batches  # ends the workers, whose time counts once they have ended
        return (time.process_time() + children() - start) / count * 1000


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_hand(path: Path) -> Iterator[Any]:
    """Random windows of the memory map, as a hand-written script reads them."""
    import numpy as np
    import torch

    tokens = np.load(path, mmap_mode="r")
    order = np.random.default_rng(0)
    while True:
        starts = order.integers(0, len(tokens) - LENGTH - 1, BATCH)
        x = torch.stack([torch.from_numpy(tokens[i : i + LENGTH].astype(np.int64)) for i in starts])
        y = torch.stack(
            [torch.from_numpy(tokens[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in starts]
        )
        yield x, y


def ours(workers: int) -> Callable[[Path], Iterator[Any]]:
    def batches(path: Path) -> Iterator[Any]:
        from launcher.data.loader import ResumableLoader
        from launcher.data.tokens import MappedWindows

        windows = MappedWindows([path], LENGTH, 50257, "uint16")
        return iter(ResumableLoader(windows, seed=0, micro_batch_size=BATCH, num_workers=workers))

    return batches


def torchs(workers: int) -> Callable[[Path], Iterator[Any]]:
    """The same dataset under torch's DataLoader."""

    def batches(path: Path) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        from launcher.data.tokens import MappedWindows

        windows = MappedWindows([path], LENGTH, 50257, "uint16")
        loader = DataLoader(windows, batch_size=BATCH, shuffle=True, num_workers=workers)
        while True:
            yield from loader

    return batches


class Numbers:
    """A map-style dataset of 10^8 samples that costs nothing."""

    def __len__(self) -> int:
        return 10**8

    def __getitem__(self, index: int) -> int:
        return index


def first_batch_at(samples: int) -> Callable[[bool], float]:
    """CPU milliseconds from the loader's state to its first batch."""

    def contender(quick: bool) -> float:
        from launcher.data.loader import ResumableLoader

        def first() -> Any:
            loader = ResumableLoader(Numbers(), seed=0, micro_batch_size=BATCH)
            loader.load_state_dict({"samples": samples})
            return next(iter(loader))

        return cpu_seconds(first, 20, 200) * 1000

    return contender


def text(size: int, figure: str) -> Callable[[bool], float]:
    """Measure a text of that many bytes, from its files to the first batch."""

    def contender(quick: bool) -> float:
        import numpy as np
        import torch  # noqa: F401 - not to be counted

        from launcher.data.text import TextData

        with tempfile.TemporaryDirectory() as folder:
            total = size // 100 if quick else size
            words = np.random.default_rng(0).integers(97, 123, 2**20, dtype=np.uint8).tobytes()
            for number in range(20):
                with (Path(folder) / f"{number}.txt").open("wb") as file:
                    for start in range(0, total // 20, 2**20):
                        file.write(words[: min(2**20, total // 20 - start)])
            before, start = status("VmRSS"), time.process_time()
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
            data = TextData(batch_size=BATCH, files=f"{folder}/*.txt")
            loader: Any = data.train_loader(seed=0, micro_batch_size=BATCH)
            next(iter(loader))
            return (
                time.process_time() - start
                if figure == "seconds"
                else (status("VmHWM") - before) / 2**20
            )

    return contender


def plain_read(size: int) -> Callable[[bool], float]:
    def contender(quick: bool) -> float:
        import numpy as np

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "text"
            with path.open("wb") as file:
                for _ in range((size // 100 if quick else size) // 2**20):
                    file.write(b"a" * 2**20)
            start = time.process_time()
            np.fromfile(path, dtype=np.uint8)
            return time.process_time() - start

    return contender


def metrics(lines: int, of_a_step: bool) -> Callable[[bool], float]:
    """CPU milliseconds of a logged step, or of a resume, with this many lines in metrics.jsonl."""

    def contender(quick: bool) -> float:
        import torch
        from torch import nn

        from launcher import BaseTrainer, JsonlHook

        count = min(lines, 10_000) if quick else lines

        class Tiny(BaseTrainer):
            def build_data_loader(self) -> Any:
                return [torch.ones(1, 1)] * 1000

            def build_model(self) -> nn.Module:
                return nn.Linear(1, 1)

            def build_optimizer(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.model.parameters(), lr=0.1)

            def forward(self, input: torch.Tensor) -> Any:
                return self.model(input).mean(), {}

        with tempfile.TemporaryDirectory() as folder:
            values = {
                "train/loss": 1.25,
                "train/grad_norm": 0.5,
                "train/lr/group_0": 0.001,
                "train/step_time": 0.0123,
            }
            with (Path(folder) / "metrics.jsonl").open("w") as file:
                for step in range(1, count + 1):
                    line = {
                        "step": step,
                        "time": 1.8e9 + step,
                        "attempt": 1,
                        "samples": step * 32,
                        **values,
                    }
                    file.write(json.dumps(line) + "\n")
            trainer = Tiny(max_steps=count + 10**6, workspace=folder, device="cpu")
            trainer.build()
            trainer.step = count
            hook = JsonlHook()
            hook.on_start(trainer)
            start = time.process_time()
            hook.on_ready(trainer)
            resumed = (time.process_time() - start) * 1000
            assert len((Path(folder) / "metrics.jsonl").read_bytes().splitlines()) == count

            def log() -> None:
                trainer.step += 1
                hook.on_before_step(trainer)
                hook.on_log(
                    trainer, {"train": {"loss": 1.25, "grad_norm": 0.5, "step_time": 0.0123}}
                )

            return cpu_seconds(log, 100, 1000) * 1000 if of_a_step else resumed

    return contender


def parse(lines: int) -> Callable[[bool], float]:
    """Measure the parsing of each line."""

    def contender(quick: bool) -> float:
        line = json.dumps(
            {
                "step": 1,
                "time": 1.8e9,
                "attempt": 1,
                "samples": 32,
                "train/loss": 1.25,
                "train/lr": 0.001,
            }
        )
        count = min(lines, 10_000) if quick else lines
        start = time.process_time()
        for _ in range(count):
            json.loads(line)
        return (time.process_time() - start) * 1000

    return contender


GB = 10**9
BENCHMARKS = [
    Benchmark(
        "tokens",
        f"Batches of {BATCH} x {LENGTH} tokens from a file",
        "CPU ms a batch, workers included",
        {
            "hand-written, memory map": lambda quick: cpu_of_batches(by_hand, quick),
            "Launcher": lambda quick: cpu_of_batches(ours(0), quick),
            "Launcher, 2 workers": lambda quick: cpu_of_batches(ours(2), quick),
            "Launcher, 4 workers": lambda quick: cpu_of_batches(ours(4), quick),
            "torch's DataLoader": lambda quick: cpu_of_batches(torchs(0), quick),
            "torch's DataLoader, 2 workers": lambda quick: cpu_of_batches(torchs(2), quick),
            "torch's DataLoader, 4 workers": lambda quick: cpu_of_batches(torchs(4), quick),
        },
        goals={"Launcher": 1.11},
    ),
    Benchmark(
        "resume",
        "A loader's first batch, in a shuffled dataset of 10^8 samples",
        "CPU ms",
        {
            "from the beginning": first_batch_at(0),
            "after 99,999,000 samples": first_batch_at(99_999_000),
            "in the 5th epoch": first_batch_at(450_000_000),
        },
        goals={"after 99,999,000 samples": 1.1, "in the 5th epoch": 1.1},
    ),
    Benchmark(
        "text",
        "1 GB of text, from its files to the first batch",
        "CPU seconds",
        {"one plain read": plain_read(GB), "Launcher": text(GB, "seconds")},
    ),
    Benchmark(
        "text-memory",
        "Memory for a text, from its files to the first batch",
        "MiB",
        {"100 MB": text(GB // 10, "memory"), "1 GB": text(GB, "memory")},
        goals={"1 GB": 10.5},
        repeats=1,
    ),
    Benchmark(
        "metrics",
        "A step that is logged, with a long metrics.jsonl",
        "CPU ms",
        {"1 line": metrics(1, True), "10^6 lines": metrics(10**6, True)},
        goals={"10^6 lines": 1.1},
    ),
    Benchmark(
        "metrics-resume",
        "A resume with 10^6 lines in metrics.jsonl: its lines are checked",
        "CPU ms",
        {"json.loads of each line": parse(10**6), "Launcher": metrics(10**6, False)},
        goals={"Launcher": 0.5},
        repeats=1,
    ),
]
