"""CPU seconds of commands.

Commands that need no torch are compared with a minimal Hydra program that runs, and a run of one
step with a bare script of the same parts.
"""

import compileall
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.measure import ROOT, Benchmark, NotRun

HYDRA = """
import hydra
@hydra.main(version_base="1.3", config_path=None, config_name="config")
def main(config): print(config.seed)
from hydra.core.config_store import ConfigStore
ConfigStore.instance().store(name="config", node={"seed": 0, "optimizer": {"lr": 0.1}})
main()
"""
BARE = """
import os, sys, torch
from torch import nn
kind = sys.argv[1]
if kind != "none":
    os.environ.update(
        RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0"
    )
    init_method = "file://" + sys.argv[2]
    torch.distributed.init_process_group("gloo", init_method=init_method, rank=0, world_size=1)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
if kind == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss = nn.functional.cross_entropy(model(torch.randn(64, 64)), torch.randint(10, (64,)))
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
if kind != "none":
    torch.distributed.destroy_process_group()
"""
LOOK = """
import sys, time
from launcher.config.compose.composer import command
from launcher.train.build import build_trainer
from launcher.resume.unstored import Unstored
with command(sys.argv[1:]) as words:
    run = words.run()
trainer = build_trainer(run, run.folder)
start = time.process_time()
Unstored().begin(trainer)
print(start, time.process_time() - start)
"""
GPT = ["model=gpt", "data=synthetic", "device=cpu"]
SMALL = ["model=mlp", "data=digits", "trainer.max_steps=1", "device=cpu"]
RUN = [*SMALL, "hooks=[]"]
# A run without checkpoints is never complete.
SAVED = [*SMALL, "hooks=[checkpointing]", "hooks.checkpointing.best_metric=null"]
LAUNCHER, RUNS = ["-m", "launcher"], ["-m", "launcher.runs"]


def spent(command: Sequence[str], folder: Path, code: int = 0) -> float:
    """Return the CPU seconds of a command of Python's and of all its processes.

    Its modules are compiled to bytecode.
    """
    compileall.compile_dir(ROOT / "src", quiet=1)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, env=env
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != code:
        raise NotRun(f"exit code {done.returncode}: {done.stderr.strip()[-200:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def command(words: Sequence[str], first: Sequence[str], code: int, quick: bool) -> float:
    """A command after another one, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        if first:
            spent(first, Path(folder))
        return spent(words, Path(folder), code)


def program(text: str, kind: str, quick: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(text)
        return spent(["program.py", *([kind, f"{folder}/store"] if kind else [])], Path(folder))


def look(part: int, quick: bool) -> float:
    """Return the CPU seconds before the first look at a user's objects, or of the look."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", LOOK, *GPT], cwd=folder, capture_output=True, text=True
        )
    if done.returncode:
        raise NotRun(f"exit code {done.returncode}: {done.stderr.strip()[-200:]}")
    return float(done.stdout.split()[part])


def of(*words: str, first: Sequence[str] = (), code: int = 0) -> Callable[[bool], float]:
    return partial(command, words, first, code)


def first_step(kind: str) -> Callable[[bool], float]:
    return of(*LAUNCHER, *RUN, f"strategy={kind}", "dispatch.nproc=1")


SWEEP = [*LAUNCHER, "-m", *SAVED, "seed=1,2"]
BENCHMARKS = [
    Benchmark(
        "commands",
        "commands that need no torch",
        "CPU seconds",
        {
            "a minimal Hydra program": partial(program, HYDRA, ""),
            "a configuration error": of(*LAUNCHER, "optimizer.lrr=1", code=2),
            "a run that is complete": of(*LAUNCHER, *SAVED, first=[*LAUNCHER, *SAVED]),
            "a sweep that is complete": of(*SWEEP, first=SWEEP),
            "runs": of(*RUNS),
            "runs --help": of(*RUNS, "--help"),
        },
        {"a configuration error": 1.6, "a run that is complete": 1.6},
        repeats=5,
    ),
    Benchmark(
        "unstored",
        "the look at a user's objects before the first step of the default gpt",
        "CPU seconds",
        {"the start before it": partial(look, 0), "the look": partial(look, 1)},
        {"the look": 0.01},
        repeats=5,
    ),
    *(
        Benchmark(
            f"first_{kind}",
            f"one step of a small model, strategy={kind} on one rank",
            "CPU seconds",
            {"bare script": partial(program, BARE, kind), "Launcher": first_step(kind)},
            {"Launcher": 1.1},
            repeats=5,
        )
        for kind in ("none", "ddp", "fsdp")
    ),
]
