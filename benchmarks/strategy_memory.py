"""Memory of one rank under each strategy.

The bytes of parameters, gradients and optimizer state are counted tensor by tensor, and compared
with what they should be. The peak of the process is above what it had before the model was built.

    python benchmarks/strategy_memory.py                      # every row, a Markdown table
    python benchmarks/strategy_memory.py 'fsdp ×2' --dim 256  # one row, a smaller model

Runs on the CPU over gloo; the peak (Linux alone) holds activations and what is gathered for a
block, too.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from launcher.dispatch.spawner import Spawner

FSDP = ["strategy=fsdp"]
ROWS: dict[str, tuple[int, int, list[str]]] = {
    # ranks, over how many of them parameters, gradients and moments are sharded, overrides
    "none": (1, 1, ["strategy=none"]),
    "ddp ×2": (2, 1, ["strategy=ddp"]),
    "fsdp ×1": (1, 1, FSDP),
    "fsdp ×2, no_shard": (2, 1, [*FSDP, "strategy.sharding=no_shard"]),
    "fsdp ×2, shard_grad_op": (2, 2, [*FSDP, "strategy.sharding=shard_grad_op"]),
    "fsdp ×2": (2, 2, FSDP),
    "fsdp ×2, bf16": (2, 2, [*FSDP, "precision=bf16"]),
    "fsdp ×2, accumulation 2": (2, 2, [*FSDP, "trainer.micro_batch_size=1"]),
    "fsdp ×2, recomputing": (2, 2, [*FSDP, "trainer.activation_checkpointing=full"]),
    "fsdp ×4": (4, 4, FSDP),
    "fsdp ×4, replicate=2": (4, 2, [*FSDP, "strategy.replicate=2"]),
}
STEPS = 3
SAMPLES = 2
"""Batch size of each rank, so that all have as many activations."""


def settings(dim: int, ranks: int) -> list[str]:
    return [
        "data=synthetic", "data.seq_len=128", "data.vocab_size=4096", "data.num_val_samples=0",
        f"data.batch_size={SAMPLES * ranks}", f"trainer.max_steps={STEPS}",
        "model=gpt", f"model.dim={dim}", "model.num_layers=8", "model.num_heads=8",
        "hooks=[]", "tracker=[]", "device=cpu", "run.name=memory", "run.id=memory",
    ]  # fmt: skip


def held(tensors: list[Any]) -> int:
    """Bytes of this rank's pieces."""
    here = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in here)


def measure(folder: Path) -> dict[str, Any]:
    """Train a few steps in a rank."""
    import torch
    import torch._dynamo  # what strategies import when they are built is no memory of the model's
    import torch.distributed.fsdp

    from benchmarks.measure import configure
    from launcher.hooks.base import BaseHook
    from launcher.rundir.folder import RunFolder
    from launcher.train.build import build_trainer

    class Gradients(BaseHook):
        bytes = 0

        def on_before_optimizer_step(self, trainer: Any) -> None:
            self.bytes = held([p.grad for p in trainer.model.parameters() if p.grad is not None])

    torch.set_num_threads(1)
    overrides = json.loads((folder / "overrides.json").read_text())
    config = configure(overrides)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    gradients = Gradients()
    trainer = build_trainer(config, RunFolder(folder / "run"), [gradients])
    trainer.train()
    moments = [
        t
        for state in trainer.optimizer.state.values()
        for t in state.values()
        if isinstance(t, torch.Tensor)
    ]
    counted = {
        "numel": sum(p.numel() for p in trainer.model.parameters()),
        "parameters": held(list(trainer.model.parameters())),
        "gradients": gradients.bytes,
        "optimizer": held(moments),
        "peak": status("VmHWM") - before,
    }
    trainer.strategy.teardown()
    return counted


def status(key: str) -> int:
    """Bytes, from /proc/self/status."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)
    )
    return int(line.split()[1]) * 1024


def run(ranks: int, overrides: list[str], dim: int) -> list[dict[str, Any]]:
    """Counts of each rank."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "overrides.json").write_text(json.dumps([*settings(dim, ranks), *overrides]))
        spawner = Spawner([sys.executable, __file__, "--rank"], ranks, folder)
        spawner.run()
        if (failed := spawner.cause()) is not None:
            raise SystemExit(f"rank {failed.number} failed; code {failed.process.returncode}")
        return [json.loads((folder / f"memory-{rank}.json").read_text()) for rank in range(ranks)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; default: all")
    parser.add_argument("--dim", type=int, default=512)
    arguments = parser.parse_args()
    # Glibc: what is freed goes back, as on a GPU.
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "65536")
    print(
        "| MiB of the rank that has most | parameters | gradients | optimizer | together | in"
        " theory | peak |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in arguments.rows or ROWS:
        ranks, share, overrides = ROWS[row]
        largest = max(
            run(ranks, overrides, arguments.dim), key=lambda counted: counted["parameters"]
        )
        parts = [largest["parameters"], largest["gradients"], largest["optimizer"]]
        theory = 16 * largest["numel"] / share  # fp32 weights, gradients and two moments
        cells = [*parts, sum(parts), theory, largest["peak"]]
        print(f"| {row} |", " | ".join(f"{cell / 2**20:.1f}" for cell in cells), "|", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # as it was before the spawner blocked some
        target = Path(sys.argv[2])
        (target / f"memory-{os.environ['RANK']}.json").write_text(json.dumps(measure(target)))
    else:
        main()
