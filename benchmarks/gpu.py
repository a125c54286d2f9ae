"""One GPU: the gpt of 124 million and of a billion parameters in bf16, compiled.

It is compared with a hand-written compiled loop, and the cost of a checkpoint is measured. It takes
minutes on one GPU, and is reported as not run where there is none.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Benchmark, Figure, NotRun

WARM_UP, STEPS, QUICK_STEPS = 10, 40, 5
TOKENS = 16384
"""Tokens of a step of the small shape; a step of the large one has half."""


@dataclass(frozen=True)
class Shape:
    dim: int
    num_layers: int
    num_heads: int
    seq_len: int
    batch_size: int
    vocab_size: int = 50304

    @property
    def overrides(self) -> list[str]:
        return [
            f"model.dim={self.dim}", f"model.num_layers={self.num_layers}",
            f"model.num_heads={self.num_heads}",
            f"data.seq_len={self.seq_len}", f"data.vocab_size={self.vocab_size}",
            f"data.batch_size={self.batch_size}",
        ]  # fmt: skip

    def flops(self, parameters: int) -> float:
        """Floating-point operations of a step: 6 for each parameter and token, and attention.

        See Chowdhery et al. 2022, appendix B, arXiv:2204.02311. The tied embedding counts as the
        output layer that it is.
        """
        tokens = self.batch_size * self.seq_len
        return tokens * (6.0 * parameters + 12.0 * self.num_layers * self.dim * self.seq_len)


SHAPES = {
    "124m_1024": Shape(768, 12, 12, 1024, TOKENS // 1024),
    "124m_4096": Shape(768, 12, 12, 4096, TOKENS // 4096),
    "1b_1024": Shape(2048, 18, 16, 1024, TOKENS // 2048),
    "1b_4096": Shape(2048, 18, 16, 4096, TOKENS // 8192),
}
TINY = Shape(32, 2, 2, 32, 2, vocab_size=256)


class Timed:
    """A loader's batches, with the time at some steps.

    The time is noted when the device has done what it was given.
    """

    def __init__(self, loader: Any, at: list[int], device: str):
        self.loader, self.at, self.device = loader, at, device
        self.times: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.loader):
            if number in self.at:
                self.times.append(now(self.device))
            yield batch

    def milliseconds(self) -> list[float]:
        """Between the steps of `at`."""
        return [
            (end - start) * 1000 for start, end in zip(self.times, self.times[1:], strict=False)
        ]


def now(device: str) -> float:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def composed(shape: Shape, device: str, steps: int, folder: str, hooks: list[str]) -> Any:
    from launcher.config.compose import configure
    from launcher.rundir.folder import RunFolder
    from launcher.train.build import build_trainer

    config = configure(
        [
            "data=synthetic",
            "model=gpt",
            *shape.overrides,
            f"trainer.max_steps={steps}",
            *hooks,
            "tracker=[]",
            "precision=bf16",
            "trainer.compile=true",
            "strategy=none",
            f"device={device}",
            "~scheduler",
            "run.name=benchmark",
            "run.id=benchmark",
            f"paths.outputs={folder}",
        ]
    )
    return build_trainer(config, RunFolder(Path(folder) / "run").create(), [])


def by_hand(
    shape: Shape, device: str, at: list[int], save_at: int | None = None
) -> tuple[list[float], Any]:
    """The same module, compiled, and a loop of five lines.

    Milliseconds between the steps of `at`, and the model.
    """
    import torch
    from torch.nn.utils import clip_grad_norm_

    with tempfile.TemporaryDirectory() as folder:
        trainer = composed(shape, device, 1, folder, ["hooks=[]"])
        model, batches = trainer.model, Timed(trainer.data_loader, at, device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
        for step, (x, y) in enumerate(batches):
            if step == at[-1]:
                break
            with torch.autocast(device, dtype=torch.bfloat16):
                loss, _ = model((x.to(device, non_blocking=True), y.to(device, non_blocking=True)))
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step == save_at:
                path = Path(folder) / "checkpoint.pt"
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        return batches.milliseconds(), model


def launched(shape: Shape, device: str, at: list[int], hooks: list[str]) -> tuple[list[float], Any]:
    """The same, composed."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = composed(shape, device, at[-1] + 1, folder, hooks)
        trainer.data_loader = batches = Timed(trainer.data_loader, at, device)
        trainer.train()
        return batches.milliseconds(), trainer.model


def step_figure(
    shape: Shape, run: Callable[[list[int]], tuple[list[float], Any]], steps: int
) -> Figure:
    """Milliseconds a step, and what follows from them."""
    import torch

    from launcher.hooks.flops import peak_tflops

    (total,), model = run([WARM_UP, WARM_UP + steps])
    milliseconds = total / steps
    figure = {
        "ms a step": milliseconds,
        "tokens/s": shape.batch_size * shape.seq_len / milliseconds * 1000,
    }
    if torch.cuda.is_available():
        peak = peak_tflops(torch.cuda.get_device_name(), "bf16")
        done = (
            shape.flops(sum(parameter.numel() for parameter in model.parameters()))
            / milliseconds
            / 1e9
        )
        figure |= {
            "MFU": done / peak if peak else float("nan"),
            "peak GiB": torch.cuda.max_memory_allocated() / 2**30,
        }
    return figure


def stall_figure(run: Callable[[list[int]], tuple[list[float], Any]], steps: int) -> Figure:
    """Milliseconds by which steps with a save take longer than as many without."""
    (without, with_save), _ = run([WARM_UP, WARM_UP + steps, WARM_UP + 2 * steps])
    return {"ms lost": with_save - without, "ms a step": without / steps}


def need_gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise NotRun("a CUDA GPU is needed")
    return "cuda"


def steps(shape: Shape, hooks: list[str] | None) -> Callable[[bool], Figure]:
    """`hooks`: None is the hand-written loop."""

    def contender(quick: bool) -> Figure:
        device = need_gpu()
        run = (
            (lambda at: by_hand(shape, device, at))
            if hooks is None
            else (lambda at: launched(shape, device, at, hooks))
        )
        return step_figure(shape, run, QUICK_STEPS if quick else STEPS)

    return contender


def stall(shape: Shape, is_launched: bool) -> Callable[[bool], Figure]:
    def contender(quick: bool) -> Figure:
        device, count = need_gpu(), QUICK_STEPS if quick else STEPS
        save_at = WARM_UP + count + 2
        if is_launched:
            return stall_figure(lambda at: launched(shape, device, at, saving(save_at)), count)
        return stall_figure(lambda at: by_hand(shape, device, at, save_at), count)

    return contender


def saving(step: int) -> list[str]:
    return [
        "hooks=[checkpointing]", "hooks.checkpointing.interval=100000",
        f"hooks.checkpointing.keep_steps=[{step}]",
        "hooks.checkpointing.best_metric=null",
    ]  # fmt: skip


def benchmark(name: str, shape: Shape) -> Benchmark:
    return Benchmark(
        f"gpu_{name}",
        f"gpt on one GPU: dim {shape.dim}, {shape.num_layers} blocks, batch {shape.batch_size} x"
        f" {shape.seq_len} tokens, bf16, compiled, fused AdamW",
        "ms a step",
        {
            "hand-written loop, compiled": steps(shape, None),
            "Launcher, no hooks": steps(shape, ["hooks=[]"]),
            "Launcher, progress and logging": steps(shape, ["hooks=[progress,logging]"]),
        },
        goals={"Launcher, no hooks": 1 / 0.99, "Launcher, progress and logging": 1 / 0.99},
    )


BENCHMARKS = [
    *(benchmark(name, shape) for name, shape in SHAPES.items()),
    Benchmark(
        "gpu_checkpoint",
        "One checkpoint of the gpt of 124 million parameters on one GPU",
        "ms lost",
        {
            "torch.save and fsync in the loop": stall(SHAPES["124m_1024"], False),
            "Launcher, asynchronous": stall(SHAPES["124m_1024"], True),
        },
    ),
]
