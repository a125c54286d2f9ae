"""CPU seconds until step 20 of a small model on several ranks, and of a sweep of small jobs.

Peers run a loop of the same model on as many ranks. New interpreters are what Launcher starts where
the process that would fork has ended.
"""

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measure import Benchmark, NotRun
from benchmarks.startup import LAUNCHER, spent

PARTS = """
import os, torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
rows = torch.utils.data.TensorDataset(torch.randn(1437, 64), torch.randint(10, (1437,)))
"""
LOOP = """
def train(model, optimizer, loader, backward):
    step = 0
    while step < 20:
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step == 20:
                break
"""
BARE = (
    PARTS
    + LOOP
    + """
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
sampler = torch.utils.data.DistributedSampler(rows)
loader = torch.utils.data.DataLoader(rows, batch_size=64, sampler=sampler)
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader, lambda loss: loss.backward())
if torch.distributed.get_rank() == 0:
    torch.save(model.state_dict(), "last.pt")
torch.distributed.destroy_process_group()
"""
)
ACCELERATE = (
    PARTS
    + LOOP
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
loader = torch.utils.data.DataLoader(rows, batch_size=64, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
train(model, optimizer, loader, accelerator.backward)
accelerator.save_state("last")
accelerator.end_training()
"""
)
LIGHTNING = (
    PARTS
    + """
import pytorch_lightning as lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)
trainer = lightning.Trainer(
    max_steps=20, accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp",
    logger=False, enable_progress_bar=False, gradient_clip_val=1.0, default_root_dir=".",
)
trainer.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=64, shuffle=True))
"""
)
NEW_INTERPRETERS = """
import os, sys
if "node" in sys.orig_argv:
    os._exit(1)
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
RUN = (*LAUNCHER, "model=mlp", "data=digits", "device=cpu", "trainer.max_steps=20")
RANKS = 4


def launcher(words: Sequence[str], forks: bool, quick: bool) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), os.environ.get("PYTHONPATH", "")
        # Threads are as many as torchrun has.
        os.environ["OMP_NUM_THREADS"] = "1"
        if not forks:
            (folder / "sitecustomize.py").write_text(NEW_INTERPRETERS)
            os.environ["PYTHONPATH"] = f"{name}{os.pathsep}{path}"
        return spent([*RUN, *words], folder)


def on_ranks(count: int, forks: bool, quick: bool) -> float:
    return launcher(["strategy=ddp", f"dispatch.nproc={count}"], forks, quick)


def swept(forks: bool, quick: bool) -> float:
    seeds = f"seed=range({4 if quick else 8})"
    return launcher(["-m", seeds, "dispatch.parallel=2"], forks, quick)


def peer(text: str, library: str, quick: bool) -> float:
    if not find_spec(library):
        raise NotRun(f"{library} is not installed")
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "program.py").write_text(text)
        os.environ["OMP_NUM_THREADS"] = "1"
        # Lightning alone does not wait for its ranks, whose time would not count.
        command = [*TORCHRUN, f"--nproc-per-node={RANKS}", "program.py"]
        return spent(command, Path(name))


BENCHMARKS = [
    Benchmark(
        "start_ranks",
        f"a small model until step 20; peers on {RANKS} ranks",
        "CPU seconds",
        {
            "Launcher, 1 rank": partial(on_ranks, 1, True),
            "Launcher, 2 ranks": partial(on_ranks, 2, True),
            f"Launcher, {RANKS} ranks": partial(on_ranks, RANKS, True),
            f"Launcher, {RANKS} new interpreters": partial(on_ranks, RANKS, False),
            "torchrun with a bare script": partial(peer, BARE, "torch"),
            "Accelerate": partial(peer, ACCELERATE, "accelerate"),
            "Lightning": partial(peer, LIGHTNING, "pytorch_lightning"),
        },
        {f"Launcher, {RANKS} ranks": 2.5},
    ),
    Benchmark(
        "start_jobs",
        "a sweep of 8 small jobs with dispatch.parallel=2",
        "CPU seconds",
        {
            "each a new interpreter": partial(swept, False),
            "forked": partial(swept, True),
        },
        {"forked": 0.5},
    ),
]
