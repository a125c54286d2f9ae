"""Instructions a step of the loop with the default hooks, over a hand-written loop, for a step so small that nothing
hides it. Counted by valgrind's callgrind, so the load of the machine does not matter.

    python -m benchmarks.instructions
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WARM_UP, COUNTED, INTERVAL = 30, 50, 10


class Counter:
    """Batches that turn counting on and off, in a process that callgrind runs."""

    def __init__(self, folder: Path):
        self.folder = folder

    def batches(self, name: str) -> Iterator[Any]:
        import torch

        batch = torch.randn(8, 32)
        for step in range(WARM_UP + COUNTED + 2):
            if step == WARM_UP:
                self.control("--instr=on")
            if step == WARM_UP + COUNTED:
                self.control("--instr=off")
                self.control(f"--dump={name}")
            yield batch

    def control(self, command: str) -> None:
        process = subprocess.Popen(["callgrind_control", command, str(os.getpid())], stdout=subprocess.DEVNULL)
        while process.poll() is None:  # callgrind answers while this process runs
            pass


def bare(counter: Counter) -> None:
    import torch
    from torch import nn

    model = nn.Linear(32, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in counter.batches("bare"):
        loss = model(batch).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def launched(name: str) -> Callable[[Counter], None]:
    def run(counter: Counter) -> None:
        import torch
        from torch import nn

        from launcher import BaseTrainer

        class Tiny(BaseTrainer):
            def build_data_loader(self) -> Any:
                return counter.batches(name)

            def build_model(self) -> nn.Module:
                return nn.Linear(32, 32)

            def build_optimizer(self) -> torch.optim.Optimizer:
                return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

            def build_hooks(self) -> list[Any]:
                return default_hooks() if name == "hooks" else []

            def forward(self, input: torch.Tensor) -> Any:
                return self.model(input).pow(2).mean(), {}

        workspace = counter.folder / name
        Tiny(max_steps=WARM_UP + COUNTED + 1, grad_clip=1.0, device="cpu", workspace=workspace).train()

    return run


def default_hooks() -> list[Any]:
    from launcher import CheckpointingHook, EvaluationHook, JsonlHook, LoggingHook, ProgressHook

    return [
        ProgressHook(interval=INTERVAL), LoggingHook(interval=INTERVAL), EvaluationHook(interval=1000, at_start=False),
        CheckpointingHook(interval=1000), JsonlHook(),
    ]  # fmt: skip


CASES: dict[str, Callable[[Counter], None]] = {"bare": bare, "loop": launched("loop"), "hooks": launched("hooks")}


def count() -> dict[str, float]:
    """Instructions a step of each case.

    Raises:
        subprocess.CalledProcessError: valgrind failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        command = [*valgrind, sys.executable, __file__, folder]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return {total[0]: total[1] / COUNTED for total in map(_total, Path(folder).glob("out*")) if total[0] in CASES}


def _total(dump: Path) -> tuple[str, int]:
    lines = dump.read_text().splitlines()
    name = next((line.rpartition(" ")[2] for line in lines if line.startswith("desc: Trigger")), "")
    return name, next(int(line.split()[1]) for line in lines if line.startswith(("totals:", "summary:")))


def main() -> None:
    if len(sys.argv) > 1:
        counter = Counter(Path(sys.argv[1]))
        for case in CASES.values():
            case(counter)
        return
    if shutil.which("callgrind_control") is None:
        sys.exit("valgrind is not installed.")
    counts = count()
    for name, steps in counts.items():
        print(f"{name:8s} {steps:12.0f} instructions a step   {steps / counts['bare']:.3f} of the hand-written loop")


if __name__ == "__main__":
    main()
