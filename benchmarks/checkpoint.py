"""Cost of a checkpoint, compared with others in one run.

The state is a model with AdamW, 12 bytes a parameter.

    python benchmarks/checkpoint.py                        # 100 million parameters, 1.2 GB
    python benchmarks/checkpoint.py --millions 25 --repeats 3

- lost: seconds by which a training loop that is saved in once takes longer than one that is not,
  the wait at its end included. That a call returns early says little: a copy that is made later, or
  a busy core, is paid for all the same.
- durable: seconds from the call to all bytes fsynced, with nothing else to do.
- load: into a live model and optimizer, nothing of it in the page cache.
- exit: from a SIGTERM at the end of a step to the end of the process, of `python -m launcher` and
  of hand-written scripts.

Each is the median of alternating repeats. The yardsticks are taken just before each, since a shared
disk may be several times faster a minute later: a copy of the state into kept memory, a write of as
many bytes with fsync, a read of as many bytes. Of the ratios to them, the median and the range are
printed.
"""

import argparse
import gc
import importlib.util
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from launcher.checkpoint.chain import ChainWriter
from launcher.checkpoint.manifest import Manifest, is_small
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import Payload, Saver
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.hooks.base import BaseHook
from launcher.process.ranks import Ranks
from launcher.rundir.folder import RunFolder
from launcher.strategies.native import NativeStrategy

WIDTH = 1024


def make_model(millions: float) -> nn.Module:
    """Square layers, as many as it takes."""
    return nn.Sequential(
        *(
            nn.Linear(WIDTH, WIDTH)
            for _ in range(max(1, round(millions * 1e6 / (WIDTH * WIDTH + WIDTH))))
        )
    )


class Training:
    """Model and optimizer, a step, and how each contender saves and loads them."""

    def __init__(self, millions: float):
        torch.manual_seed(0)
        self.model = make_model(millions)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.input = torch.randn(16, WIDTH)
        self.step()

    def step(self) -> None:
        self.model(self.input).pow(2).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> list[torch.Tensor]:
        moments = [t for state in self.optimizer.state.values() for t in state.values() if t.dim()]
        return [p.detach() for p in self.model.parameters()] + moments

    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors())


# --------------------------------------------------------------------------------------- contenders
class Contender:
    """Saves into a folder.

    `begin` returns when training may continue, `finish` when the bytes are durable.
    """

    name = ""

    def __init__(self, training: Training, folder: Path):
        self.training, self.folder = training, folder
        folder.mkdir()

    def begin(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Nothing is in flight."""

    def settle(self) -> None:
        """Wait for what no training and no later save waits for."""

    def durable_at(self) -> float:
        """Time on the clock of time.perf_counter, after `finish`."""
        return time.perf_counter()

    def load(self) -> None:
        raise NotImplementedError


class Timed(CheckpointStore):
    """Notes when a checkpoint was committed; deleting older ones afterwards is not counted."""

    durable_at = 0.0

    def commit(self, *args: Any) -> Path:
        path = super().commit(*args)
        self.durable_at = time.perf_counter()
        return path


class Plain(Contender):
    """Launcher's own, without a chain."""

    name = "launcher, no chain"

    def __init__(self, training: Training, folder: Path):
        super().__init__(training, folder)
        self.store, self.number = Timed(folder), 0
        self.saver = Saver(self.store, Ranks(), Retention())
        self.strategy = _strategy(training)

    def begin(self) -> None:
        self.finish()
        snapshot = self.strategy.snapshot()
        self.number += 1
        manifest = Manifest(self.number, 1, "none", "sharded")
        self.saver.save(
            Payload(self.number, manifest, snapshot.tensors, {}, snapshot.meta), wait=False
        )

    def finish(self) -> None:
        self.saver.finish()

    def durable_at(self) -> float:
        return self.store.durable_at

    def load(self) -> None:
        newest = self.store.newest_valid(is_small)
        assert newest is not None
        self.strategy.load(StoredCheckpoint(newest[0]))


class Ours(Plain):
    """Launcher's own, with a line in `chain.jsonl` for each checkpoint, as a run has it."""

    name = "launcher"

    def __init__(self, training: Training, folder: Path):
        super().__init__(training, folder)
        self.store.chain = ChainWriter(RunFolder(folder), folder, lambda: None)

    def settle(self) -> None:
        assert self.store.chain is not None
        self.store.chain.finish()


def _strategy(training: Training) -> NativeStrategy:
    from launcher.optim.precision import Precision
    from launcher.strategies.external import ExternalStrategy
    from launcher.strategies.step import StepPlan

    scaler = torch.amp.GradScaler("cpu", enabled=False)
    precision, device = Precision("fp32"), torch.device("cpu")
    return ExternalStrategy(
        training.model, training.optimizer, scaler, StepPlan(), precision, device, None
    )


class TorchSave(Contender):
    name = "torch.save + fsync"

    def begin(self) -> None:
        state = {
            "model": self.training.model.state_dict(),
            "optimizer": self.training.optimizer.state_dict(),
        }
        with open(self.folder / "new.pt", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.folder / "new.pt", self.folder / "state.pt")

    def load(self) -> None:
        state = torch.load(self.folder / "state.pt")
        self.training.model.load_state_dict(state["model"])
        self.training.optimizer.load_state_dict(state["optimizer"])


class Dcp(Contender):
    """torch.distributed.checkpoint; it fsyncs its files."""

    name = "DCP"

    def __init__(self, training: Training, folder: Path):
        super().__init__(training, folder)
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp

        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.dcp, self.future = dcp, None
        self.group = dist.new_group(backend="gloo")

    def state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.training.model, self.training.optimizer)
        return {"model": model, "optimizer": optimizer}

    def begin(self) -> None:
        self.dcp.save(self.state(), checkpoint_id=self.folder / "state")

    def load(self) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = self.state()
        self.dcp.load(state, checkpoint_id=self.folder / "state")
        set_state_dict(
            self.training.model,
            self.training.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


class DcpAsync(Dcp):
    name = "DCP async"
    stager: Any = None

    def begin(self) -> None:
        self.finish()
        self.future = self.dcp.async_save(
            self.state(),
            checkpoint_id=self.folder / "state",
            process_group=self.group,
            **self.options(),
        )

    def options(self) -> dict[str, Any]:
        return {}

    def finish(self) -> None:
        if self.future is not None:
            self.future.result()
            self.future = None


class DcpCached(DcpAsync):
    """Saves with one stager that keeps its buffers."""

    name = "DCP async, kept stager"

    def options(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        if self.stager is None:
            self.stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=False,
                    use_shared_memory=False,
                    use_async_staging=False,
                    use_non_blocking_copy=False,
                )
            )
        return {"async_stager": self.stager}


class LightningAsync(Contender):
    """Lightning's AsyncCheckpointIO: a thread calls its torch.save. Nothing is fsynced."""

    name = "Lightning async (no fsync)"

    def __init__(self, training: Training, folder: Path):
        super().__init__(training, folder)
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

        self.io = AsyncCheckpointIO(TorchCheckpointIO())

    def begin(self) -> None:
        state = {
            "model": self.training.model.state_dict(),
            "optimizer": self.training.optimizer.state_dict(),
        }
        self.io.save_checkpoint(state, self.folder / "state.pt")

    def finish(self) -> None:
        self.io.teardown()
        self.__init__(self.training, self.folder / f"{time.monotonic_ns()}")  # type: ignore[misc]


class Trainloop(Contender):
    """trainloop's own hook, called as its loop does. It saves at once, and fsyncs nothing."""

    name = "trainloop's hook (no fsync)"

    def __init__(self, training: Training, folder: Path):
        super().__init__(training, folder)
        import trainloop

        class Tiny(trainloop.BaseTrainer):  # type: ignore[misc]
            def build_data_loader(self) -> Any:
                return [training.input]

            def build_model(self) -> nn.Module:
                return training.model

            def build_optimizer(self) -> torch.optim.Optimizer:
                return training.optimizer

            def build_hooks(self) -> list[Any]:
                return []

            def forward(self, input: torch.Tensor) -> Any:
                return self.model(input).pow(2).mean(), {}

        self.trainer = Tiny(max_steps=1, device="cpu", workspace=folder)
        self.trainer.train()
        self.hook = trainloop.CheckpointingHook(interval=1)
        self.hook.on_before_train(self.trainer)

    def begin(self) -> None:
        self.trainer.step += 1
        self.trainer.max_steps = self.trainer.step + 1
        self.hook.on_after_step(self.trainer)

    def load(self) -> None:
        self.hook.on_before_train(self.trainer)


ALL = (Ours, Plain, TorchSave, Dcp, DcpAsync, DcpCached, LightningAsync, Trainloop)
NEEDS = {LightningAsync: "lightning", Trainloop: "trainloop"}


# ---------------------------------------------------------------------------------------- measuring
def seconds(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def loop(training: Training, steps: int, contender: Contender | None = None) -> float:
    """Seconds for `steps` steps, with one save that starts after the first."""

    def run() -> None:
        for i in range(steps):
            training.step()
            if i == 0 and contender is not None:
                contender.begin()
        if contender is not None:
            contender.finish()

    return seconds(run)


def forget(folder: Path) -> None:
    """Drop files from the page cache.

    After a reboot or on another node they are not in it either.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Yardsticks:
    """Copy, write and read as many bytes as the state has, in memory that is reused."""

    def __init__(self, training: Training, folder: Path):
        self.tensors, self.file = training.tensors(), folder / "raw"
        self.copies = [t.clone() for t in self.tensors]
        self.times: dict[str, list[float]] = {"copy": [], "write": [], "read": []}

    def take(self) -> dict[str, float]:
        """The newest times."""
        self.times["copy"].append(
            seconds(lambda: [c.copy_(t) for c, t in zip(self.copies, self.tensors, strict=True)])
        )
        self.file.unlink(missing_ok=True)
        self.times["write"].append(seconds(self._write))
        forget(self.file.parent)
        self.times["read"].append(seconds(self._read))
        return {name: times[-1] for name, times in self.times.items()}

    def _write(self) -> None:
        with open(self.file, "wb", buffering=0) as file:
            for tensor in self.copies:
                file.write(tensor.numpy().data)
            os.fsync(file.fileno())

    def _read(self) -> None:
        with open(self.file, "rb", buffering=0) as file:
            for tensor in self.copies:
                file.readinto(tensor.numpy().data)

    def __getitem__(self, name: str) -> float:
        return statistics.median(self.times[name])


class Peak:
    """Peak resident memory over what it was before, sampled every 5 ms."""

    def __enter__(self) -> "Peak":
        self._stop = threading.Event()
        self.extra = 0
        self._start = _resident()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.extra = max(self.extra, _resident() - self._start)

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    training = Training(arguments.millions)
    contenders: list[Contender] = []
    memory: dict[str, int] = {}
    for number, kind in enumerate(ALL):
        if kind in NEEDS and importlib.util.find_spec(NEEDS[kind]) is None:
            print(f"{kind.name}: {NEEDS[kind]} is not installed")
        elif arguments.only is None or kind.name in arguments.only or kind is Ours:
            contender = kind(training, folder / str(number))
            gc.collect()
            with Peak() as peak:
                contender.begin()  # the first time buffers are made, which belongs to no later save
                contender.finish()
                contender.settle()
            memory[kind.name] = peak.extra
            contenders.append(contender)
    yard = Yardsticks(training, folder)
    yard.take()
    yard.times = {name: [] for name in yard.times}
    step = statistics.median(seconds(training.step) for _ in range(5))
    results: dict[str, list[dict[str, float]]] = {c.name: [] for c in contenders}
    for repeat in range(arguments.repeats):
        for contender in contenders:
            print(
                f"repeat {repeat + 1} of {arguments.repeats}: {contender.name}",
                file=sys.stderr,
                flush=True,
            )
            times = yard.take()
            results[contender.name].append(
                with_ratios(measure_one(contender, training, step), times)
            )
    size = training.nbytes() / 1e9
    print(
        f"{size:.2f} GB; a step {step:.3f} s; copy {yard['copy']:.3f} s, write + fsync"
        f" {yard['write']:.3f} s, read {yard['read']:.3f} s"
    )
    print_table(results, memory)
    shutil.rmtree(folder / "0")
    exits: dict[str, list[dict[str, float]]] = {name: [] for name in EXITS}
    for repeat in range(arguments.repeats):
        for number, (name, command_of) in enumerate(EXITS.items()):
            print(
                f"repeat {repeat + 1} of {arguments.repeats}: exit of {name}",
                file=sys.stderr,
                flush=True,
            )
            times = yard.take()
            taken = exit_seconds(command_of, arguments.millions, folder / f"exit-{repeat}-{number}")
            exits[name].append(with_ratios({"exit": taken}, times))
    print("SIGTERM to exit")
    for name, repeats in exits.items():
        print(f"{name:28s} {cell(repeats, 'exit')}")


def measure_one(contender: Contender, training: Training, step: float) -> dict[str, float]:
    """Seconds."""
    start = time.perf_counter()
    figures = {"blocked": seconds(contender.begin)}
    contender.finish()
    figures["durable"] = contender.durable_at() - start
    contender.settle()
    steps = max(4, int(1.5 * figures["durable"] / step) + 1)
    figures["lost"] = (
        -loop(training, steps) / 2 + loop(training, steps, contender) - loop(training, steps) / 2
    )
    contender.settle()
    if not isinstance(contender, LightningAsync):
        forget(contender.folder)
        figures["load"] = seconds(contender.load)
    return figures


YARDSTICK = {"lost": "copy", "durable": "write", "load": "read", "exit": "write"}


def with_ratios(figures: dict[str, float], yardsticks: dict[str, float]) -> dict[str, float]:
    return figures | {
        f"{name} ratio": figures[name] / yardsticks[of]
        for name, of in YARDSTICK.items()
        if name in figures
    }


def cell(repeats: list[dict[str, float]], name: str) -> str:
    """Median seconds, median ratio, range of the ratios."""
    if name not in repeats[0]:
        return "-"
    ratios = [repeat[f"{name} ratio"] for repeat in repeats]
    seconds = statistics.median(repeat[name] for repeat in repeats)
    return f"{seconds:.2f}s {statistics.median(ratios):5.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"


def print_table(results: dict[str, list[dict[str, float]]], memory: dict[str, int]) -> None:
    print(f"{'':28s} {'blocked':>8s} {'lost':>26s} {'durable':>26s} {'load':>26s}   extra memory")
    for name, repeats in results.items():
        blocked = statistics.median(repeat["blocked"] for repeat in repeats)
        cells = [f"{cell(repeats, column):>26s}" for column in ("lost", "durable", "load")]
        print(f"{name:28s} {blocked:7.2f}s", *cells, f"{memory[name] / 1e9:8.2f} GB")


# ---------------------------------------------------------------------------------- SIGTERM to exit
class SendsTerm(BaseHook):
    def on_after_step(self, trainer: Any) -> None:
        if trainer.step == 3:
            print(time.time(), flush=True)
            os.kill(os.getpid(), signal.SIGTERM)


def launcher_command(folder: Path, width: int, layers: int) -> list[str]:
    return [
        "-m", "launcher", "model=mlp", f"model.hidden_dim={width}", f"model.num_layers={layers}",
        "data=digits",
        "hooks=[checkpointing]", "tracker=[]", "trainer.max_steps=10",
        "+hooks.term._target_=benchmarks.checkpoint.SendsTerm", f"paths.outputs={folder}",
    ]  # fmt: skip


def by_hand(how: str) -> Callable[[Path, int, int], list[str]]:
    script = Path(__file__).with_name("exit_by_hand.py")
    return lambda folder, width, layers: [str(script), str(folder), str(width), str(layers), how]


EXITS = {
    "launcher": launcher_command,
    "torch.save + fsync": by_hand("torch.save"),
    "the bytes alone + fsync": by_hand("bytes"),
}


def exit_seconds(
    command_of: Callable[[Path, int, int], list[str]], millions: float, folder: Path
) -> float:
    """Measure the exit of a program with a model of about this size."""
    layers = 12
    folder.mkdir()
    command = [sys.executable, *command_of(folder, round((millions * 1e6 / layers) ** 0.5), layers)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    end = time.time()
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert (
        list(folder.glob("*/*/checkpoints/latest/manifest.json")) or (folder / "state.pt").exists()
    ), done.stderr
    shutil.rmtree(folder)
    return end - next(
        float(line) for line in done.stdout.splitlines() if line.replace(".", "").isdigit()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--millions", type=float, default=100.0, help="parameters")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    parser.add_argument("--only", nargs="*", help="contenders besides ours")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        measure(arguments, Path(folder))


if __name__ == "__main__":
    main()
