"""Thirty refactors of the project of `benchmarks.guard_cases`, one on top of the other.

None has an effect on a number. They are of the kinds that training code gets: those with a number
do to this project what that pull request did to its own, without a line of its code. The first ones
leave alone what the changes of `benchmarks.guard_cases` touch, which are hidden among them.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Refactor:
    """A commit without an effect on a number.

    Args:
        name: what it does, and the pull request that did it elsewhere.
        edits: files, texts, and what replaces them. Without a text, the rest is a new file.
        moved: a file and its new name.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    moved: tuple[str, str] | None = None


REFACTORS = (
    Refactor(
        "a nested call takes two lines",
        (
            (
                "small/model.py",
                "hidden = self.act(self.first(points))",
                "hidden = self.first(points)\n        hidden = self.act(hidden)",
            ),
        ),
    ),
    Refactor(
        "an operator is a function",
        (("small/model.py", "self.scale = width**-0.5", "self.scale = pow(width, -0.5)"),),
    ),
    Refactor(
        "a function has a name of its own",
        (("small/data.py", "point = torch.sin(", "wave = torch.sin\n        point = wave("),),
    ),
    Refactor("a layer is renamed", (("small/model.py", "self.first", "self.entry"),)),
    Refactor(
        "an iterator is a list",
        (("small/hook.py", "trainer.model.parameters()", "list(trainer.model.parameters())"),),
    ),
    Refactor(
        "a comprehension takes an index",
        (
            (
                "small/data.py",
                "[label for _, label in samples]",
                "[sample[1] for sample in samples]",
            ),
        ),
    ),
    Refactor(
        "type hints (transformers #16529)",
        (
            (
                "small/model.py",
                "def forward(self, batch):",
                "def forward(self, batch: tuple[torch.Tensor, torch.Tensor]):",
            ),
        ),
    ),
    Refactor(
        "a docstring",
        (("small/model.py", "class Net(nn.Module):", 'class Net(nn.Module):\n    """Small."""\n'),),
    ),
    Refactor(
        "sorted imports",
        (
            (
                "small/data.py",
                "import torch\nfrom torch.utils.data import Dataset\n",
                "from torch.utils.data import Dataset\n\nimport torch\n",
            ),
        ),
    ),
    Refactor(
        "keyword arguments",
        (
            (
                "small/model.py",
                "nn.Linear(width, 3)",
                "nn.Linear(in_features=width, out_features=3)",
            ),
        ),
    ),
    Refactor(
        "a class is renamed (TRL #2510)",
        (
            ("small/data.py", "class Points(", "class PointSet("),
            ("conf/data/points.yaml", "small.data.Points", "small.data.PointSet"),
        ),
    ),
    Refactor(
        "type hints of a function",
        (("small/optimizer.py", "def hold(step):", "def hold(step: int) -> float:"),),
    ),
    Refactor(
        "a dict is made by keywords",
        (("small/optimizer.py", 'params, {"lr": lr}', "params, defaults=dict(lr=lr)"),),
    ),
    Refactor("an attribute is renamed", (("small/hook.py", "self.norms", "self.gradient_norms"),)),
    Refactor(
        "a module is renamed (torchtitan #494)",
        (("conf/model/net.yaml", "small.model", "small.net"),),
        moved=("small/model.py", "small/net.py"),
    ),
    Refactor(
        "the loss has a module of its own (torchtitan #859)",
        (
            (
                "small/loss.py",
                "",
                "from torch import nn\n\n\n"
                "def cross_entropy_loss(logits, target):\n"
                "    return nn.functional.cross_entropy(logits.double(), target).float()\n",
            ),
            (
                "small/net.py",
                "nn.functional.cross_entropy(logits.double(), target).float()",
                "cross_entropy_loss(logits, target)",
            ),
            (
                "small/net.py",
                "from torch import nn\n",
                "from torch import nn\n\nfrom small.loss import cross_entropy_loss\n",
            ),
        ),
    ),
    Refactor(
        "factories are named build (torchtitan #494)",
        (
            ("small/optimizer.py", "def schedule(", "def build_schedule("),
            ("conf/scheduler/hold.yaml", ".schedule", ".build_schedule"),
        ),
    ),
    Refactor(
        "schedules leave the module of optimizers (TRL #1826)",
        (
            (
                "small/scheduler.py",
                "",
                "import torch\n\n\n"
                "def hold(step: int) -> float:\n    return 1.0 if step < 30 else 0.1\n\n\n"
                "def build_schedule(optimizer):\n"
                "    return torch.optim.lr_scheduler.LambdaLR(optimizer, hold)\n",
            ),
            (
                "small/optimizer.py",
                "\n\ndef hold(step: int) -> float:\n    return 1.0 if step < 30 else 0.1\n\n\n"
                "def build_schedule(optimizer):\n"
                "    return torch.optim.lr_scheduler.LambdaLR(optimizer, hold)\n",
                "",
            ),
            ("conf/scheduler/hold.yaml", "small.optimizer", "small.scheduler"),
        ),
    ),
    Refactor(
        "a frozen dataclass holds the settings (nanoGPT #1)",
        (
            (
                "small/net.py",
                "class Net(",
                "@dataclass(frozen=True)\nclass Shape:\n"
                "    width: int\n    slope: float\n    dropout: float\n\n\nclass Net(",
            ),
            (
                "small/net.py",
                "        self.act = nn.LeakyReLU(slope)\n"
                "        self.dropout = nn.Dropout(dropout)\n",
                "        shape = Shape(width, slope, dropout)\n"
                "        self.act = nn.LeakyReLU(shape.slope)\n"
                "        self.dropout = nn.Dropout(shape.dropout)\n",
            ),
            (
                "small/net.py",
                "import torch\n",
                "from dataclasses import dataclass\n\nimport torch\n",
            ),
        ),
    ),
    Refactor(
        "a comprehension is a loop",
        (
            (
                "small/hook.py",
                "        self.gradient_norms = [weight.grad.norm() for weight in"
                " list(trainer.model.parameters())]\n",
                "        self.gradient_norms = []\n"
                "        for weight in trainer.model.parameters():\n"
                "            self.gradient_norms.append(weight.grad.norm())\n",
            ),
        ),
    ),
    Refactor(
        "an f-string",
        (
            ("small/net.py", '{"accuracy": ', '{f"{self.kind}racy": '),
            (
                "small/net.py",
                "        self.scale = ",
                '        self.kind = "accu"\n        self.scale = ',
            ),
        ),
    ),
    Refactor(
        "a value is an interpolation",
        (("conf/model/net.yaml", "small.net.Net\n", "small.net.Net\nwidth: ${data.batch_size}\n"),),
    ),
    Refactor(
        "a default is in the options",
        (("conf/model/net.yaml", "width:", "slope: 0.01\nwidth:"),),
    ),
    Refactor(
        "a decorator is a context",
        (
            (
                "small/optimizer.py",
                "    @torch.no_grad()\n    def step(self, closure=None):\n"
                "        for group in self.param_groups:\n"
                '            for weight in group["params"]:\n'
                '                weight.add_(weight.grad, alpha=-group["lr"])\n',
                "    def step(self, closure=None):\n        with torch.no_grad():\n"
                "            for group in self.param_groups:\n"
                '                for weight in group["params"]:\n'
                '                    weight.add_(weight.grad, alpha=-group["lr"])\n',
            ),
        ),
    ),
    Refactor(
        "a metric is a function",
        (
            (
                "small/loss.py",
                "from torch import nn\n",
                "from torch import nn\n\n\ndef accuracy(logits, target):\n"
                "    return (logits.argmax(-1) == target).float().mean()\n",
            ),
            (
                "small/net.py",
                "(logits.argmax(-1) == target).float().mean()",
                "accuracy(logits, target)",
            ),
            ("small/net.py", "import cross_entropy_loss", "import accuracy, cross_entropy_loss"),
        ),
    ),
    Refactor(
        "a module without weights is a function",
        (
            (
                "small/net.py",
                "self.act = nn.LeakyReLU(shape.slope)",
                "self.act = partial(nn.functional.leaky_relu, negative_slope=shape.slope)",
            ),
            (
                "small/net.py",
                "from dataclasses import dataclass\n",
                "from dataclasses import dataclass\nfrom functools import partial\n",
            ),
        ),
    ),
    Refactor(
        "samples are unzipped",
        (
            (
                "small/data.py",
                "    points = torch.stack([point for point, _ in samples])\n"
                "    return points, torch.tensor([sample[1] for sample in samples])\n",
                "    points, labels = zip(*samples)\n"
                "    return torch.stack(points), torch.tensor(labels)\n",
            ),
        ),
    ),
    Refactor("an attribute is private", (("small/data.py", "self.size", "self._size"),)),
    Refactor(
        "layers are a list",
        (
            (
                "small/net.py",
                "        self.entry = nn.Linear(4, width)\n"
                "        self.second = nn.Linear(width, width)\n",
                "        layers = [nn.Linear(4, width), nn.Linear(width, width)]\n"
                "        self.layers = nn.ModuleList(layers)\n",
            ),
            ("small/net.py", "self.entry(", "self.layers[0]("),
            ("small/net.py", "self.second(", "self.layers[1]("),
        ),
    ),
    Refactor(
        "a long function is two methods (torchtitan #948)",
        (
            (
                "small/net.py",
                "        points, target = batch\n",
                "        points, target = batch\n        logits = self.logits_of(points)\n"
                "        loss = cross_entropy_loss(logits, target)\n"
                '        return loss, {f"{self.kind}racy": accuracy(logits, target)}\n\n'
                "    def logits_of(self, points):\n",
            ),
            (
                "small/net.py",
                "        logits = self.last(hidden) * self.scale\n"
                "        loss = cross_entropy_loss(logits, target)\n"
                '        return loss, {f"{self.kind}racy": accuracy(logits, target)}\n',
                "        return self.last(hidden) * self.scale\n",
            ),
        ),
    ),
)


def apply(folder: Path, refactor: Refactor) -> None:
    """Edit the project in a folder."""
    if refactor.moved is not None:
        old, new = refactor.moved
        (folder / old).rename(folder / new)
    for name, before, after in refactor.edits:
        if before:
            replace(folder / name, before, after)
        else:
            (folder / name).write_text(after)


def replace(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    if before not in text:
        raise ValueError(f"{file}: has no {before!r}")
    file.write_text(text.replace(before, after))
