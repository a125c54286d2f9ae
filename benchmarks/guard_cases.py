"""Planted numeric changes that `python -m launcher.guard` must find, and refactors it must pass.

    python -m benchmarks guard_cases                 # 12 changes, each hidden among 16 commits
    python -m benchmarks guard_cases --history       # refactors: commits of this repository
    python -m benchmarks guard_cases --cost          # CPU seconds of an equal comparison

A change is found if a bisection names its commit, and the first difference that it makes. A table
is printed; the exit code is 1 if anything is not as expected.
"""

import argparse
import contextlib
import io
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import ROOT
from launcher.proof.code_copy import Code, copy_commit, working_tree
from launcher.proof.guard import main as guard
from launcher.proof.side import NotTrained, Preset, Side, new_folder, train

COMMITS = 16
OWN_FILES = ("guard_job.py", "guard_trace.py")
HISTORY = """
2e21c3a5 48da8a3e e1163127 8d00c8fa 9f754f57 0c642392 1acb78b5 d63bd3c7 3f783724
41b80f71 aaea719e 6dc8d0c1 7dd7e6b8 2e707fef 89a08ce2 1055830a 65ee1e35 f24c4d03
8bf1ec9e f7cb5db7 37363c3a e0b561a3 f7c1963b cf373267 b714e938 7dfeccd9 d6f0c0c7
2653da1b fc0c14b6 ec918e32 aae9d6e1 ca612ade ed6b1feb 65e2784c 5509ea3e 57b606ca
"""
"""Commits of this repository that changed its source and no number of the presets."""
PRESETS = {
    "mlp": ("model=mlp", "data=digits", "model.hidden_dim=32"),
    "gpt": ("model=gpt", "data=synthetic", "model.dim=32", "data.seq_len=16", "data.batch_size=8"),
}

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

REFACTORS = (
    (
        "small/model.py",
        "hidden = self.act(self.first(points))",
        "hidden = self.first(points)\n        hidden = self.act(hidden)",
    ),
    ("small/model.py", "self.scale = width**-0.5", "self.scale = pow(width, -0.5)"),
    ("small/data.py", "point = torch.sin(", "value = torch.sin("),
    ("small/data.py", "return point, ", "point = value\n        return point, "),
    ("small/model.py", "self.first", "self.entry"),
    ("small/hook.py", "weight in trainer", "weight in  trainer"),
    ("small/data.py", "[label for _, label in samples]", "[sample[1] for sample in samples]"),
)
"""Edits without an effect on a number: files, texts, and what replaces them."""


# ------------------------------------------------------------------------------- planted changes
def write_history(folder: Path, change: Change, place: int) -> str:
    """Commit the project in a folder, and edit it; return the hash of the change's commit.

    The other commits have no effect on a number.
    """
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    changed, edits = "", list(REFACTORS)
    for number in range(COMMITS):
        subject = "start" if number == 0 else f"refactor {number}"
        if number == place:
            subject = change.name
            replace(folder / change.file, change.before, change.after)
        elif number and edits:
            name, before, after = edits.pop(0)
            replace(folder / name, before, after)
        elif number:
            with open(folder / change.file, "a") as file:
                file.write(f"\n# Edited {number} times.\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", subject)
        if number == place:
            changed = git(folder, "rev-parse", "--short", "HEAD")
    return changed


def replace(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    if before not in text:
        raise ValueError(f"{file}: has no {before!r}")
    file.write_text(text.replace(before, after))


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


# ------------------------------------------------------------------------- refactors of Launcher
def history(steps: int) -> bool:
    """Train presets with commits of this repository and the commits before; print what differs."""
    alarms = 0
    here = working_tree()
    with tempfile.TemporaryDirectory(prefix="guard-history-") as folder:
        for name, overrides in PRESETS.items():
            preset = Preset(name, overrides, steps)
            for commit in HISTORY.split():
                alarms += not is_equal(here, commit, preset, Path(folder))
    print(f"{alarms} alarms.")
    return alarms == 0


def is_equal(here: Code, commit: str, preset: Preset, root: Path) -> bool:
    """Compare a commit with the one before; print the outcome."""
    from launcher.proof.first_difference import compare

    subject = git(here.root, "show", "--no-patch", "--format=%h %s", commit)
    try:
        before, after = (side(here, each, preset, root) for each in (f"{commit}~1", commit))
    except NotTrained as error:
        print(f"{preset.name}: {subject}: not trained: {error}", flush=True)
        return False
    found = compare(before, after).difference
    outcome = "identical" if found is None else found.describe()
    print(f"{preset.name}: {subject}: {outcome}", flush=True)
    return found is None


_sides: dict[tuple[str, str], Side] = {}


def side(here: Code, name: str, preset: Preset, root: Path) -> Side:
    """Train a preset with a commit's Launcher, which gets this one's means of comparison."""
    commit = git(here.root, "rev-parse", name)
    if (commit, preset.name) not in _sides:
        code = copy_commit(here, commit, new_folder(root) / "code")
        proof = code.root / "src/launcher/proof"
        for name in OWN_FILES:
            shutil.copyfile(here.root / "src/launcher/proof" / name, proof / name)
        # Commits before the guard have a function of the same content under a private name.
        file = proof / "scratch_run.py"
        file.write_text(file.read_text().replace("_settings(", "settings("))
        _sides[commit, preset.name] = train(code, preset, new_folder(root))
    return _sides[commit, preset.name]


# ------------------------------------------------------------------------------------------- cost
def cost(steps: int) -> bool:
    """Print the CPU seconds of a comparison of equal codes, of the command and both trainings."""
    change = Change("a comment", "small/model.py", "self.scale = ", "self.scale =  ", "")
    with tempfile.TemporaryDirectory() as folder:
        write_history(Path(folder), change, 1)
        command = [sys.executable, "-m", "launcher.guard", "experiment=small", "--steps"]
        for _ in range(3):
            before = _cpu()
            done = subprocess.run(
                [*command, str(steps), "--against", "HEAD~2"],
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
    parser.add_argument("--history", action="store_true", help="commits of this repository")
    parser.add_argument("--cost", action="store_true", help="CPU seconds of a comparison")
    arguments = parser.parse_args()
    if arguments.history:
        return int(not history(arguments.steps))
    if arguments.cost:
        return int(not cost(arguments.steps))
    return int(not planted(arguments.steps, arguments.only))


if __name__ == "__main__":
    sys.exit(main())
