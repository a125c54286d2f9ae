"""Planted numeric changes that `python -m launcher.guard` must find, and refactors it must pass.

    python -m benchmarks guard_cases                 # 12 changes, each hidden among 16 commits
    python -m benchmarks guard_cases --refactors     # 30 refactors, each against the one before
    python -m benchmarks guard_cases --cost          # CPU seconds of an equal comparison

A change is found if a bisection names its commit, and the first difference that it makes. A table
is printed; the exit code is 1 if anything is not as expected.
"""

import argparse
import contextlib
import io
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.guard_refactors import REFACTORS, apply, replace
from benchmarks.measure import ROOT
from launcher.proof.guard import main as guard

COMMITS = 16
FILES = {
    "small/__init__.py": "",
    "small/model.py": """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int = 16, slope: float = 0.01, dropout: float = 0.1):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, 3)
        self.act = nn.LeakyReLU(slope)
        self.dropout = nn.Dropout(dropout)
        self.scale = width**-0.5

    def forward(self, batch):
        points, target = batch
        hidden = self.act(self.first(points))
        more = self.act(self.second(hidden))
        hidden = hidden + more + points.sum(-1, keepdim=True)
        hidden = self.dropout(hidden)
        logits = self.last(hidden) * self.scale
        loss = nn.functional.cross_entropy(logits.double(), target).float()
        return loss, {"accuracy": (logits.argmax(-1) == target).float().mean()}
""",
    "small/data.py": """
import torch
from torch.utils.data import Dataset


class Points(Dataset):
    def __init__(self, size: int = 256):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        point = torch.sin(torch.arange(1.0, 5.0) * index)
        return point, index % 3


def collate(samples):
    points = torch.stack([point for point, _ in samples])
    return points, torch.tensor([label for _, label in samples])
""",
    "small/optimizer.py": """
import torch


class Descent(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.add_(weight.grad, alpha=-group["lr"])


def hold(step):
    return 1.0 if step < 30 else 0.1


def schedule(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, hold)
""",
    "small/hook.py": '''
from launcher import BaseHook


class Norms(BaseHook):
    """Reads the norms of the gradients."""

    def on_before_optimizer_step(self, trainer):
        self.norms = [weight.grad.norm() for weight in trainer.model.parameters()]
''',
    "conf/model/net.yaml": "_target_: small.model.Net\n",
    "conf/data/points.yaml": """
defaults:
  - custom
batch_size: 16
dataset:
  _target_: small.data.Points
val_dataset:
  _target_: small.data.Points
  size: 32
collate_fn:
  _target_: small.data.collate
  _partial_: true
""",
    "conf/optimizer/descent.yaml": "_target_: small.optimizer.Descent\n_partial_: true\nlr: 0.1\n",
    "conf/scheduler/hold.yaml": "_target_: small.optimizer.schedule\n_partial_: true\n",
    "conf/hooks/norms.yaml": "norms:\n  _target_: small.hook.Norms\n",
    "conf/experiment/small.yaml": """
# @package _global_
defaults:
  - override /model: net
  - override /data: points
  - override /optimizer: descent
  - override /scheduler: hold
  - override /hooks: [default, norms]
trainer:
  max_steps: 60
""",
    ".gitignore": "__pycache__/\noutputs/\n",
}


@dataclass(frozen=True)
class Change:
    """A change of one file, and what differs first by it."""

    name: str
    file: str
    before: str
    after: str
    first: str


CHANGES = (
    Change(
        "one ulp in an optimizer",
        "small/optimizer.py",
        'weight.add_(weight.grad, alpha=-group["lr"])',
        'weight.sub_(weight.grad / (1 / group["lr"]))',
        "differs from step 1: update of ",
    ),
    Change(
        "a dropped scale",
        "small/model.py",
        "self.last(hidden) * self.scale",
        "self.last(hidden)",
        "differs from step 1: loss",
    ),
    Change(
        "a swapped sample",
        "small/data.py",
        "torch.arange(1.0, 5.0) * index)",
        "torch.arange(1.0, 5.0) * {6: 9, 9: 6}.get(index, index))",
        ": samples",
    ),
    Change(
        "another order of a sum",
        "small/model.py",
        "hidden + more + points.sum(-1, keepdim=True)",
        "hidden + (more + points.sum(-1, keepdim=True))",
        "differs from step 1: ",
    ),
    Change(
        "a changed default",
        "small/model.py",
        "slope: float = 0.01",
        "slope: float = 0.02",
        "differs from step 1: loss",
    ),
    Change(
        "an extra random draw",
        "small/model.py",
        "        return loss, ",
        "        torch.rand(1)\n        return loss, ",
        "differs from step 2: random state",
    ),
    Change(
        "a dropout that is off",
        "small/model.py",
        "hidden = self.dropout(hidden)",
        "hidden = self.dropout.eval()(hidden)",
        "differs from step 1: loss",
    ),
    Change(
        "a loss in float32",
        "small/model.py",
        "cross_entropy(logits.double(), target).float()",
        "cross_entropy(logits, target)",
        "differs from step 1: ",
    ),
    Change(
        "a hook that writes",
        "small/hook.py",
        "weight.grad.norm() for",
        "weight.grad.mul_(1.0000001).norm() for",
        "differs from step 1: gradient of ",
    ),
    Change(
        "an augmentation",
        "small/data.py",
        "return point, index % 3",
        "return point + 0.01 * torch.randn(4), index % 3",
        "differs from step 1: samples",
    ),
    Change(
        "a collate function",
        "small/data.py",
        "def collate(samples):\n",
        "def collate(samples):\n    samples = sorted(samples, key=lambda sample: sample[1])\n",
        "differs from step 1: samples",
    ),
    Change(
        "a schedule off by one",
        "small/optimizer.py",
        "1.0 if step < 30 else 0.1",
        "1.0 if step <= 30 else 0.1",
        "differs from step 31: learning rate",
    ),
)


# ------------------------------------------------------------------------------- planted changes
def write_project(folder: Path) -> None:
    """Write the project in a folder, and commit it."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    commit_all(folder, "start")


def commit_all(folder: Path, subject: str) -> str:
    """Commit the project, and return the abbreviated hash."""
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", subject)
    return git(folder, "rev-parse", "--short", "HEAD")


def write_history(folder: Path, change: Change, place: int) -> str:
    """Commit the project in a folder, and edit it; return the hash of the change's commit.

    The other commits are refactors.
    """
    write_project(folder)
    refactors = iter(REFACTORS)
    for number in range(1, COMMITS):
        if number == place:
            replace(folder / change.file, change.before, change.after)
            changed = commit_all(folder, change.name)
        else:
            refactor = next(refactors)
            apply(folder, refactor)
            commit_all(folder, refactor.name)
    return changed


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def planted(steps: int, names: str) -> bool:
    """Find each change by a bisection; print a table, and return whether all are as expected."""
    print("| change | commit | first difference | trainings | found |")
    print("|---|---|---|---|---|", flush=True)
    results = []
    for number, change in enumerate(CHANGES):
        if names not in change.name:
            continue
        place = 1 + number * 7 % (COMMITS - 1)
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            commit = write_history(Path(folder), change, place)
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                words = ["experiment=small", "--steps", str(steps)]
                guard([*words, "--bisect", f"HEAD~{COMMITS - 1}"])
        lines = [*out.getvalue().splitlines(), "", ""]
        is_found = f"first differs at {commit} " in lines[0] and change.first in lines[1]
        results.append(is_found)
        trainings = sum(" with " in line for line in err.getvalue().splitlines())
        text = lines[1].strip() if lines[1] else err.getvalue().strip()
        print(f"| {change.name} | {place + 1} of {COMMITS} | {text} | {trainings} |", end="")
        print(f" {'yes' if is_found else 'no'} |", flush=True)
    print(f"\n{sum(results)} of {len(results)} found with the right commit and first difference.")
    return all(results)


# -------------------------------------------------------------------------------------- refactors
def refactors(steps: int) -> bool:
    """Compare the project after each refactor with the project before it; print a table."""
    print("| refactor | outcome |\n|---|---|", flush=True)
    alarms = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_project(Path(folder))
        for refactor in REFACTORS:
            apply(Path(folder), refactor)
            commit_all(Path(folder), refactor.name)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                alarms += guard(["experiment=small", "--steps", str(steps), "--against=HEAD~1"])
            text = out.getvalue().splitlines()[0].partition(": ")[2]
            print(f"| {refactor.name} | {text} |", flush=True)
    print(f"\n{len(REFACTORS)} refactors, {alarms} alarms.")
    return alarms == 0


# ------------------------------------------------------------------------------------------- cost
def cost(steps: int) -> bool:
    """Print the CPU seconds of a comparison of equal codes, of the command and both trainings."""
    with tempfile.TemporaryDirectory() as folder:
        write_project(Path(folder))
        apply(Path(folder), REFACTORS[0])
        command = [sys.executable, "-m", "launcher.guard", "experiment=small", "--steps"]
        for _ in range(3):
            before = _cpu()
            done = subprocess.run(
                [*command, str(steps), "--against", "HEAD"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            )
            print(f"{_cpu() - before:.1f} CPU s, exit code {done.returncode}", flush=True)
    return done.returncode == 0


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", default="", help="changes with this in their names")
    parser.add_argument("--refactors", action="store_true", help="what must raise no alarm")
    parser.add_argument("--cost", action="store_true", help="CPU seconds of a comparison")
    arguments = parser.parse_args()
    if arguments.refactors:
        return int(not refactors(arguments.steps))
    if arguments.cost:
        return int(not cost(arguments.steps))
    return int(not planted(arguments.steps, arguments.only))


if __name__ == "__main__":
    sys.exit(main())
