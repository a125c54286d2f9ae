"""One GPU: steps, checkpoints, and the end of a run, next to a hand-written loop and others.

    python -m benchmarks gpu                  # 124m, wide, save, process; meant for six minutes
    python -m benchmarks gpu save small       # sections by name; the others are 1b, small, logits
    python -m benchmarks gpu --device cpu --quick      # tiny sizes: to see that it runs

All contenders of a section train the same compiled model over the same batches in bf16 (or fp8),
with fused AdamW and clipping, in one process. A figure is the median of five windows of steps.
"""

import argparse
import hashlib
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

WINDOWS = 5
STEP = re.compile(r"Step (\d+)/\d+:")
"""The beginning of a line of progress."""


@dataclass(frozen=True)
class Shape:
    dim: int
    num_layers: int
    num_heads: int
    seq_len: int
    batch_size: int
    vocab_size: int = 50304
    window: int = 10
    """Steps of a window."""

    @property
    def overrides(self) -> list[str]:
        return [
            "data=synthetic", "model=gpt",
            f"model.dim={self.dim}", f"model.num_layers={self.num_layers}",
            f"model.num_heads={self.num_heads}",
            f"data.seq_len={self.seq_len}", f"data.vocab_size={self.vocab_size}",
            f"data.batch_size={self.batch_size}", "trainer.compile=true", "strategy=none",
            "tracker=[]",
        ]  # fmt: skip

    def flops(self, parameters: int) -> float:
        """Floating-point operations of a step: 6 for each parameter and token, and attention.

        See Chowdhery et al. 2022, appendix B, arXiv:2204.02311. The tied embedding counts as the
        output layer that it is.
        """
        tokens = self.batch_size * self.seq_len
        return tokens * (6.0 * parameters + 12.0 * self.num_layers * self.dim * self.seq_len)


LAUNCH_BOUND = Shape(128, 4, 4, 128, 16, vocab_size=1024, window=50)
GPT_124M = Shape(768, 12, 12, 1024, 16)
GPT_1B = Shape(2048, 18, 16, 4096, 4, window=4)
GPT_WIDE = replace(GPT_1B, num_layers=9)
"""Half as many layers, which are compiled in half the time."""
QUICK = Shape(32, 2, 2, 32, 2, vocab_size=256, window=2)


class Marked:
    """A loader's batches, with the time at the start of each window.

    The time is noted when the device has done what it was given.
    """

    def __init__(self, loader: Any, marks: list[int]):
        self.loader, self.marks = loader, marks
        self.times: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.loader):
            if number in self.marks:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                self.times.append(time.perf_counter())
            yield batch

    @property
    def windows(self) -> list[float]:
        """Seconds between two marks."""
        return [end - start for start, end in zip(self.times, self.times[1:], strict=False)]


class Bench:
    """The device and the sizes of a measurement, and its rows."""

    def __init__(self, device: str, is_quick: bool):
        self.device, self.is_quick = device, is_quick
        self.rows: list[list[str]] = []

    def shape(self, shape: Shape) -> Shape:
        return QUICK if self.is_quick else shape

    def composed(self, shape: Shape, folder: str, *settings: str) -> Any:
        """A trainer as `python -m launcher` builds it."""
        from benchmarks.measure import configure
        from launcher.rundir.folder import RunFolder
        from launcher.train.build import build_trainer

        config = configure(
            [
                *shape.overrides, "run.name=benchmark", "run.id=benchmark", "~scheduler",
                f"device={self.device}", f"paths.outputs={folder}", *settings,
            ]
        )  # fmt: skip
        return build_trainer(config, RunFolder(Path(folder) / "run").create(), [])

    def measure(
        self, section: str, shape: Shape, contenders: dict[str, "Contender"], precision: str
    ) -> None:
        """Add a row for each contender; the first is the yardstick."""
        yardstick = None
        marks = [shape.window * number for number in range(1, WINDOWS + 2)]
        for name, contender in contenders.items():
            torch.compiler.reset()
            if self.device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            settings = [precision] + (
                ["precision.emulate=true"] if "fp8" in precision and self.device == "cpu" else []
            )
            started = time.perf_counter()
            try:
                with tempfile.TemporaryDirectory() as folder:
                    run = Run(self, shape, folder, settings, marks)
                    contender(run)
            except ModuleNotFoundError as reason:
                self.add(section, name, f"not run: {reason}")
                continue
            milliseconds = statistics.median(run.batches.windows) / shape.window * 1000
            yardstick = yardstick or milliseconds
            self.add(
                section,
                name,
                f"{milliseconds:.2f} ms a step",
                f"{milliseconds / yardstick:.3f}",
                *run.figures(milliseconds),
                f"{time.perf_counter() - started:.0f} s in all",
            )

    def add(self, *cells: str) -> None:
        self.rows.append(list(cells))
        print(" | ".join(cells), flush=True)


@dataclass
class Run:
    """One contender's training: the composed trainer's model and batches, and its loop."""

    bench: Bench
    shape: Shape
    folder: str
    settings: list[str]
    marks: list[int]
    batches: Any = None
    parameters: int = 0
    num_bytes: int = 0
    copied: float = 0.0
    """Seconds of a copy of these bytes."""

    def compose(self, *settings: str) -> Any:
        trainer = self.bench.composed(
            self.shape,
            self.folder,
            f"trainer.max_steps={self.marks[-1] + 1}",
            *self.settings,
            *settings,
        )
        trainer.data_loader = Marked(trainer.data_loader, self.marks)
        self.batches = trainer.data_loader
        self.parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        return trainer

    def by_hand(self) -> tuple[nn.Module, torch.optim.Optimizer, Iterator[Any]]:
        """The same model, an optimizer, and the batches of a training on the device."""
        trainer = self.compose("hooks=[]")
        optimizer = torch.optim.AdamW(
            trainer.model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True
        )
        return trainer.model, optimizer, self.limited()

    def limited(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches):
            if number == self.marks[-1]:
                return
            yield tuple(part.to(self.bench.device, non_blocking=True) for part in batch)

    def figures(self, milliseconds: float) -> list[str]:
        from launcher.hooks.flops import peak_tflops

        if self.bench.device != "cuda":
            return []
        peak = peak_tflops(torch.cuda.get_device_name(), "bf16")
        done = self.shape.flops(self.parameters) / milliseconds / 1e9
        return [
            f"MFU {done / peak:.4f}" if peak else "MFU unknown",
            f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB",
        ]


Contender = Callable[[Run], None]


def hand(run: Run) -> None:
    model, optimizer, batches = run.by_hand()
    for batch in batches:
        with torch.autocast(run.bench.device, dtype=torch.bfloat16):
            loss, _ = model(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def launched(*settings: str) -> Contender:
    return lambda run: run.compose(*settings).train()


def fabric(run: Run) -> None:
    from lightning_fabric import Fabric

    model, optimizer, batches = run.by_hand()
    trainer = Fabric(accelerator=run.bench.device, devices=1, precision="bf16-mixed")
    model, optimizer = trainer.setup(model, optimizer)
    for batch in batches:
        loss, _ = model(batch)
        trainer.backward(loss)
        trainer.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()


def lightning(run: Run) -> None:
    import pytorch_lightning as pl

    inner, inner_optimizer, batches = run.by_hand()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.inner(batch)[0]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return inner_optimizer

        # Lightning rejects its own clipping with a fused optimizer.
        def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)

    trainer = pl.Trainer(
        max_steps=run.marks[-1], accelerator="gpu" if run.bench.device == "cuda" else "cpu",
        devices=1, precision="bf16-mixed", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=run.folder,
    )  # fmt: skip
    trainer.fit(Module(), batches)


def huggingface(run: Run) -> None:
    from transformers import Trainer, TrainingArguments

    inner, optimizer, batches = run.by_hand()

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            return ({"x": x, "y": y} for x, y in batches)

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.inner((x, y))[0]}

    settings = TrainingArguments(
        run.folder, max_steps=run.marks[-1], use_cpu=run.bench.device == "cpu", bf16=True,
        report_to=[], logging_steps=10, save_strategy="no", max_grad_norm=1.0, disable_tqdm=True,
        per_device_train_batch_size=1, lr_scheduler_type="constant",
        # Batches are on the device already.
        dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(
        Module(),
        settings,
        train_dataset=Batches(),
        data_collator=lambda samples: samples[0],
        optimizers=(optimizer, None),
    ).train()


LOOPS = {
    "hand-written loop": hand,
    "Launcher, no hooks": launched("hooks=[]"),
    "Launcher, progress and logging": launched("hooks=[progress,logging]"),
    "Fabric": fabric,
    "Lightning": lightning,
    "Hugging Face Trainer": huggingface,
}


# --------------------------------------------------------------------------------------- sections
def small(bench: Bench) -> None:
    bench.measure("4 blocks of 128", bench.shape(LAUNCH_BOUND), LOOPS, "precision=bf16")


def gpt_124m(bench: Bench) -> None:
    bench.measure("124M, 16 x 1024", bench.shape(GPT_124M), LOOPS, "precision=bf16")


def logits(bench: Bench) -> None:
    loops = {
        "Launcher, chunks of logits": launched("hooks=[]"),
        "Launcher, all logits at once": launched("hooks=[]", "model.logits_chunk=0"),
    }
    bench.measure("124M, 16 x 1024", bench.shape(GPT_124M), loops, "precision=bf16")


def gpt_1b(bench: Bench) -> None:
    loops = {name: LOOPS[name] for name in list(LOOPS)[:2]}
    for precision in ("bf16", "fp8"):
        title = f"1B, 4 x 4096, {precision}"
        bench.measure(title, bench.shape(GPT_1B), loops, f"precision={precision}")


def wide(bench: Bench) -> None:
    loops = {
        "hand-written loop, bf16": hand,
        "Launcher, bf16": launched("hooks=[]"),
        "Launcher, fp8": launched(
            "hooks=[]",
            "precision=fp8",
            f"precision.emulate={'true' if bench.device == 'cpu' else 'false'}",
        ),
    }
    bench.measure("2048 x 9, 4 x 4096", bench.shape(GPT_WIDE), loops, "precision=bf16")


def save(bench: Bench) -> None:
    """The cost of the first and second save of a process, over a copy of the same bytes."""
    # The first save is on disk before the second one begins.
    shape = replace(bench.shape(GPT_124M), window=8 if bench.is_quick else 80)
    first, second = shape.window + 2, 2 * shape.window + 2
    marks = [0, shape.window, 2 * shape.window, 3 * shape.window, 4 * shape.window]

    def contender(run: Run) -> None:
        run.marks = marks
        trainer = run.compose(
            "hooks=[checkpointing]", "hooks.checkpointing.interval=100000",
            f"hooks.checkpointing.keep_steps=[{first},{second}]",
            "hooks.checkpointing.best_metric=null",
        )  # fmt: skip
        trainer.train()
        tensors = trainer.strategy.snapshot().tensors
        run.copied = copy_seconds(tensors, bench.device)
        run.num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(bench, shape, folder, ["precision=bf16"], marks)
        contender(run)
    _, with_first, with_second, without = run.batches.windows
    for name, window in (("first", with_first), ("second", with_second)):
        lost = window - without
        bench.add(
            "save",
            f"{name} save of {run.num_bytes / 1e9:.2f} GB",
            f"{lost * 1000:.1f} ms lost",
            f"{lost / run.copied:.2f} of the copy alone ({run.copied * 1000:.1f} ms)",
        )


def copy_seconds(tensors: dict[str, torch.Tensor], device: str) -> float:
    """Seconds of a copy of all tensors into host memory that is there already; the best of 5."""
    pin = device == "cuda"
    buffers = {
        name: torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=pin and tensor.is_cuda)
        for name, tensor in tensors.items()
    }
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        for name, tensor in tensors.items():
            buffers[name].copy_(tensor, non_blocking=True)
        if pin:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def process(bench: Bench) -> None:
    """A run that is stopped and resumed next to one left alone, and the ends of their processes."""
    # Fewer layers are compiled sooner, and end alike.
    shape = replace(bench.shape(GPT_124M), num_layers=2 if bench.is_quick else 4)
    steps = 6 * shape.window
    with tempfile.TemporaryDirectory() as folder:

        def command(tag: str) -> list[str]:
            return [
                sys.executable, "-u", "-m", "launcher", *shape.overrides, "precision=bf16",
                "trainer.deterministic=true", f"device={bench.device}", f"run.tag={tag}",
                f"trainer.max_steps={steps}", "hooks.logging.interval=1",
                "hooks.progress.interval=1", f"hooks.evaluation.interval={steps}",
                "hooks.evaluation.max_samples=64",
                f"hooks.checkpointing.interval={steps}", f"paths.outputs={folder}/outputs",
            ]  # fmt: skip

        alone = watch(command("alone"))
        bench.add("process", "run left alone", f"exit {alone.end:.2f} s after its last line")
        stopped = watch(command("stopped"), stop_at=2 * shape.window)
        bench.add("process", "stopped run", f"exit {stopped.end:.2f} s after SIGTERM")
        resumed = watch(command("stopped"))
        bench.add(
            "process",
            "resumed run",
            f"first step {resumed.first_step:.2f} s after the start",
            f"exit {resumed.end:.2f} s after its last line",
        )
        lines, weights = compare(Path(folder))
        bench.add("process", "stopped and resumed, next to the run left alone", lines, weights)


@dataclass
class Watched:
    end: float
    first_step: float


def watch(command: list[str], stop_at: int | None = None) -> Watched:
    """Run a command; with `stop_at`, send SIGTERM once it has shown that step."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: list[tuple[float, str]] = []
    stopped: list[float] = []

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append((time.perf_counter(), line))
            step = STEP.search(line)
            if stop_at is not None and step and int(step[1]) >= stop_at and not stopped:
                stopped.append(time.perf_counter())
                child.send_signal(signal.SIGTERM)

    # Not waited for to its end: a process that the child leaves may hold the pipe.
    threading.Thread(target=read, daemon=True).start()
    code, end = child.wait(), time.perf_counter()
    if code != (0 if stop_at is None else 128 + signal.SIGTERM):
        raise RuntimeError(f"exit code {code}:\n{''.join(line for _, line in lines[-20:])}")
    first_step = next(at for at, line in lines if STEP.search(line)) - started
    last = max(at for at, _ in lines if at <= end)
    return Watched(end - (stopped[0] if stopped else last), first_step)


def compare(folder: Path) -> tuple[str, str]:
    """Say how many logged losses are equal, and whether the last checkpoints are."""
    from safetensors.torch import load_file

    runs = sorted(path.parent for path in folder.rglob("metrics.jsonl"))
    assert len(runs) == 2
    losses, digests = [], []
    for run in runs:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses.append({row["step"]: row["train/loss"] for row in rows if "train/loss" in row})
        newest = max((run / "checkpoints").glob("step-*"))
        digest = hashlib.sha256()
        for name, tensor in sorted(load_file(newest / "shard-00000.safetensors").items()):
            digest.update(name.encode() + tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        digests.append(digest.hexdigest())
    equal = sum(losses[0][step] == losses[1].get(step) for step in losses[0])
    return (
        f"{equal} of {len(losses[0])} losses equal",
        "weights and moments equal" if digests[0] == digests[1] else "weights differ",
    )


SECTIONS = {
    "124m": gpt_124m,
    "wide": wide,
    "save": save,
    "process": process,
    "1b": gpt_1b,
    "small": small,
    "logits": logits,
}
DEFAULT = ("124m", "wide", "save", "process")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="SECTION",
        help=f"of {', '.join(SECTIONS)}; default: {' '.join(DEFAULT)}",
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see that it runs")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        parser.error(f"{unknown[0]}: must be one of {', '.join(SECTIONS)}.")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA GPU was found; --device cpu --quick shows that it runs.")
    bench = Bench(arguments.device, arguments.quick)
    started = time.perf_counter()
    for name in arguments.sections or DEFAULT:
        SECTIONS[name](bench)
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    print(
        f"\n{name}, Python {sys.version.split()[0]}, torch {torch.__version__};"
        f" {time.perf_counter() - started:.0f} s in all.\n"
    )
    for row in bench.rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
