"""The default gpt, composed: step, memory, torch.compile.

It is compared with a hand-written loop of the same module.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Benchmark, Figure, NotRun, status
from benchmarks.turns import Loader, Turns

BATCH = 8
SMALL = ["data.seq_len=128"]
LARGE = [
    "data.seq_len=128",
    "data.vocab_size=8192",
    "model.dim=512",
    "model.num_layers=8",
    "model.num_heads=8",
]
"""30 million parameters."""
VOCABULARY = [
    "data.seq_len=256",
    "data.vocab_size=50304",
    "model.dim=64",
    "model.num_layers=1",
    "model.num_heads=2",
]
"""Batches of 2,048 tokens, whose logits are 393 MiB in fp32."""


def composed(
    settings: list[str], steps: int, hooks: str = "[default]", strategy: str = "none"
) -> Any:
    """A trainer as `python -m launcher` builds it, and its temporary folder."""
    from benchmarks.measure import configure
    from launcher.rundir.folder import RunFolder
    from launcher.train.build import build_trainer

    folder = tempfile.TemporaryDirectory()
    config = configure(
        [
            "data=synthetic",
            "model=gpt",
            f"data.batch_size={BATCH}",
            f"trainer.max_steps={steps}",
            f"hooks={hooks}",
            "tracker=[]",
            "device=cpu",
            f"strategy={strategy}",
            "run.name=benchmark",
            "run.id=benchmark",
            f"paths.outputs={folder.name}",
            *settings,
        ]
    )
    return build_trainer(config, RunFolder(Path(folder.name) / "run").create(), []), folder


class ByHand:
    """The same model, optimizer and batches, and a loop of five lines."""

    def __init__(self, settings: list[str]):
        trainer, self.folder = composed(settings, 1)
        self.model = trainer.model
        self.optimizer = trainer.optimizer
        self.batches = iter(trainer.data_loader)
        self.scheduler = trainer.lr_scheduler

    def step(self) -> None:
        from torch.nn.utils import clip_grad_norm_

        loss, _ = self.model(next(self.batches))
        loss.backward()
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scheduler is not None:
            self.scheduler.step()


def memory_by_hand(quick: bool) -> float:
    loop = ByHand(SMALL if quick else LARGE)
    return peak(lambda: [loop.step() for _ in range(5)])


def memory_launched(quick: bool) -> float:
    trainer, folder = composed(SMALL if quick else LARGE, 5, hooks="[progress,logging]")
    figure = peak(trainer.train)
    folder.cleanup()
    return figure


def peak(act: Callable[[], Any]) -> float:
    """The most memory of the process while it trains, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    act()
    return status("VmHWM") / 2**20


def logits(chunk: str, compiles: bool = False) -> Callable[[bool], Figure]:
    """The most memory above that before the steps, and CPU seconds a step."""

    def contender(quick: bool) -> Figure:
        if compiles and shutil.which("g++") is None:
            raise NotRun("torch.compile needs g++")
        loop = ByHand([*VOCABULARY, f"model.logits_chunk={chunk}"])
        if compiles:
            loop.model.compile()
        loop.step()
        before = status("VmRSS") / 2**20
        steps = 1 if quick else 3
        start = time.process_time()
        highest = peak(lambda: [loop.step() for _ in range(steps)])
        return {"MiB": highest - before, "CPU s": (time.process_time() - start) / steps}

    return contender


def step(launched: bool, compiles: bool = False, hooks: str = "[]") -> Callable[[bool], Figure]:
    """CPU milliseconds a step, after the compilation."""

    def contender(quick: bool) -> Figure:
        if compiles and shutil.which("g++") is None:
            raise NotRun("torch.compile needs g++")
        turns = Turns(quick)
        settings = [*SMALL, f"trainer.compile={'true' if compiles and launched else 'false'}"]
        if not launched:
            loop = ByHand(settings)
            if compiles:
                loop.model.compile()
            return turns.train(loop.step)
        trainer, folder = composed(settings, turns.steps + 1, hooks)
        trainer.data_loader = Loader(trainer.data_loader, turns.batches)
        trainer.train()
        folder.cleanup()
        return turns.milliseconds

    return contender


BENCHMARKS = [
    Benchmark(
        "gpt",
        f"The default gpt, batch {BATCH} x 128 tokens, composed by Hydra",
        "CPU ms a step",
        {
            "hand-written loop": step(launched=False),
            "Launcher, no hooks": step(launched=True),
            "Launcher, default hooks": step(
                launched=True, hooks="[progress,logging,checkpointing]"
            ),
        },
        goals={"Launcher, no hooks": 1.01, "Launcher, default hooks": 1.01},
        takes_turns=True,
    ),
    Benchmark(
        "compile",
        f"The default gpt, batch {BATCH} x 128 tokens, torch.compile off and on",
        "CPU ms a step",
        {
            "hand-written loop": step(False),
            "Launcher": step(True),
            "hand-written loop, compiled": step(False, True),
            "Launcher, compiled": step(True, True),
        },
        takes_turns=True,
    ),
    Benchmark(
        "memory",
        "A gpt of 30 million parameters: the most memory of the process",
        "MiB",
        {"hand-written loop": memory_by_hand, "Launcher": memory_launched},
        goals={"Launcher": 1.05},
    ),
    Benchmark(
        "logits",
        "A step of a small gpt with a vocabulary of 50,304, 2,048 tokens: memory and time",
        "MiB",
        {
            "all logits": logits("0"),
            "chunks of 256 tokens": logits("256"),
            "all logits, compiled": logits("0", compiles=True),
            "chunks of 256 tokens, compiled": logits("256", compiles=True),
        },
        repeats=2,
    ),
]
