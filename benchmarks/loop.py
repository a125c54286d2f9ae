"""What the loop costs: CPU instructions a step over a hand-written loop, for a step so small that nothing hides it.

    python benchmarks/loop.py                # counts with valgrind's callgrind, takes a few minutes
    python benchmarks/loop.py --time         # seconds instead, side by side in one run; noisy

The hand-written loop does the same work: forward, backward, clip, AdamW, zero_grad.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEPS = 400


def batches() -> Any:
    batch = torch.randn(8, 32)
    while True:
        yield batch


def bare(steps: int) -> None:
    model = nn.Linear(32, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = batches()
    for _ in range(steps):
        loss = model(next(data)).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def launched(steps: int, hooks: bool = False, package: str = "launcher") -> None:
    """The same by subclass, of ours or of a peer with the same contract."""
    module = __import__(package)

    class Tiny(module.BaseTrainer):  # type: ignore[misc, name-defined]
        def build_data_loader(self) -> Any:
            return batches()

        def build_model(self) -> nn.Module:
            return nn.Linear(32, 32)

        def build_optimizer(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

        def build_hooks(self) -> list[Any]:
            if not hooks:
                return []
            from launcher import JsonlHook, LoggingHook, ProgressHook

            return [ProgressHook(interval=10), LoggingHook(interval=10), JsonlHook()]

        def forward(self, input: torch.Tensor) -> Any:
            return self.model(input).pow(2).mean(), {}

    with tempfile.TemporaryDirectory() as workspace:
        Tiny(max_steps=steps, grad_clip=1.0, device="cpu", workspace=workspace).train()


CASES = {
    "bare loop": bare,
    "launcher": launched,
    "launcher with progress, logging, jsonl": lambda steps: launched(steps, hooks=True),
    "trainloop": lambda steps: launched(steps, package="trainloop"),
}


def instructions(case: str, steps: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", sys.executable, __file__]
        done = subprocess.run(
            [*command, "--case", case, "--steps", str(steps)], capture_output=True, text=True, check=True
        )
    return int(re.findall(r"Collected : (\d+)", done.stderr)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--time", action="store_true", help="seconds instead of instructions")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.case:
        CASES[arguments.case](arguments.steps)
        return
    present = [name for name in CASES if name != "trainloop" or Path(sys.prefix).glob("lib/*/site-packages/trainloop")]
    costs = {}
    for name in present:
        try:
            if arguments.time:
                CASES[name](50)
                start = time.perf_counter()
                CASES[name](arguments.steps * 5)
                costs[name] = (time.perf_counter() - start) / (arguments.steps * 5) * 1e6
            else:
                if shutil.which("valgrind") is None:
                    parser.error("valgrind is not installed; take --time")
                # two lengths, so that imports and set-up cancel
                costs[name] = (instructions(name, arguments.steps) - instructions(name, arguments.steps // 4)) / (
                    arguments.steps - arguments.steps // 4
                )
        except (ImportError, subprocess.CalledProcessError) as error:
            print(f"{name}: not measured ({type(error).__name__})")
    unit = "us" if arguments.time else "instructions"
    for name, cost in costs.items():
        print(f"{name:42s} {cost:14.0f} {unit} a step   {cost / costs['bare loop']:.2f} of the bare loop")


if __name__ == "__main__":
    main()
