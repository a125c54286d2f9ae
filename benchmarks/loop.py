"""Cost of the loop: instructions a step over a hand-written loop.

The step is so small that nothing hides it.
"""

import gc
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

from benchmarks.callgrind import Counter
from benchmarks.measure import Benchmark

WARM_UP = 100
COUNTED = 50
INTERVAL = 10
CLIPS, NEVER_CLIPS = 1e-6, 1.0
"""Norms that every gradient of the model exceeds, and none. All loops but Launcher's clip in either
case."""


def counting(
    batches: Iterable[Any], name: str = "steps", warm_up: int = WARM_UP, counted: int = COUNTED
) -> Iterator[Any]:
    """Batches that turn counting on and off.

    Args:
        batches: the batches.
        name: of the count.
        warm_up: batches before counting.
        counted: batches during it.
    """
    counter = Counter()
    for step, batch in enumerate(batches):
        if step == warm_up:
            # What the imports have left behind would be collected within some counts, and not in
            # others.
            gc.collect()
            counter.start()
        if step == warm_up + counted:
            counter.stop(name)
        yield batch


def batches(name: str = "steps") -> Iterator[Any]:
    """The same batch again and again."""
    import torch

    return counting(repeat(torch.randn(8, 32), WARM_UP + COUNTED + 4), name)


def bare(name: str = "steps") -> None:
    import torch
    from torch import nn

    model = nn.Linear(32, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in batches(name):
        loss = model(batch).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIPS)
        optimizer.step()
        optimizer.zero_grad()


def by_subclass(
    build_hooks: Callable[[], list[Any]],
    package: str = "launcher",
    name: str = "steps",
    grad_clip: float = CLIPS,
) -> None:
    """Loop of ours, or of a peer with the same contract."""
    import importlib

    import torch
    from torch import nn

    class Tiny(importlib.import_module(package).BaseTrainer):  # type: ignore[misc]
        def build_data_loader(self) -> Any:
            return batches(name)

        def build_model(self) -> nn.Module:
            return nn.Linear(32, 32)

        def build_optimizer(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

        def build_hooks(self) -> list[Any]:
            return build_hooks()

        def forward(self, input: torch.Tensor) -> Any:
            return self.model(input).pow(2).mean(), {}

    with tempfile.TemporaryDirectory() as workspace:
        Tiny(
            max_steps=WARM_UP + COUNTED + 1, grad_clip=grad_clip, device="cpu", workspace=workspace
        ).train()


def default_hooks(*names: str) -> list[Any]:
    from launcher import CheckpointingHook, EvaluationHook, JsonlHook, LoggingHook, ProgressHook

    hooks = {
        "progress": lambda: ProgressHook(interval=INTERVAL),
        "logging": lambda: LoggingHook(interval=INTERVAL),
        "evaluation": lambda: EvaluationHook(interval=1000, at_start=False),
        "checkpointing": lambda: CheckpointingHook(interval=1000),
        "jsonl": lambda: JsonlHook(),
    }
    return [hooks[name]() for name in names or hooks]


def accelerate() -> None:
    import torch
    from accelerate import Accelerator
    from torch import nn

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(32, 32)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for batch in batches():
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).pow(2).mean())
            accelerator.clip_grad_norm_(model.parameters(), CLIPS)
            optimizer.step()
            optimizer.zero_grad()


def fabric() -> None:
    import torch
    from lightning.fabric import Fabric
    from torch import nn

    fabric = Fabric(accelerator="cpu", devices=1)
    model = nn.Linear(32, 32)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for batch in batches():
        fabric.backward(model(batch).pow(2).mean())
        fabric.clip_gradients(model, optimizer, max_norm=CLIPS)
        optimizer.step()
        optimizer.zero_grad()


def lightning() -> None:
    import lightning as L
    import torch
    from torch import nn

    class Tiny(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(32, 32)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.model(batch).pow(2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            return batches()

    L.Trainer(
        max_steps=WARM_UP + COUNTED + 2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=CLIPS,
    ).fit(Tiny(), Batches())


def transformers() -> None:
    import torch
    from torch import nn
    from transformers import Trainer, TrainingArguments

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            return ({"batch": batch} for batch in batches())

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(32, 32)

        def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.model(batch).pow(2).mean()}

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            max_steps=WARM_UP + COUNTED + 1,
            use_cpu=True,
            report_to=[],
            logging_steps=INTERVAL,
            save_strategy="no",
            max_grad_norm=CLIPS,
            disable_tqdm=True,
            per_device_train_batch_size=1,
        )
        Trainer(
            Tiny(), settings, train_dataset=Batches(), data_collator=lambda samples: samples[0]
        ).train()


def counted(run: Callable[[], None]) -> Callable[[bool], float]:
    def contender(quick: bool) -> float:
        run()
        return COUNTED

    return contender


BENCHMARKS = [
    Benchmark(
        "loop",
        "The loop around a step so small that nothing hides it: Linear(32, 32), batch 8, AdamW,"
        " clipping",
        "instructions a step",
        {
            "hand-written loop": counted(bare),
            "Launcher, no hooks": counted(lambda: by_subclass(list)),
            "Launcher, default hooks": counted(lambda: by_subclass(default_hooks)),
            "Launcher, default hooks, small gradients": counted(
                lambda: by_subclass(default_hooks, grad_clip=NEVER_CLIPS)
            ),
            "trainloop, no hooks": counted(lambda: by_subclass(list, "trainloop")),
            "Fabric": counted(fabric),
            "Accelerate": counted(accelerate),
            "Hugging Face Trainer": counted(transformers),
            "Lightning, no progress or logs": counted(lightning),
        },
        goals={"Launcher, no hooks": 1.03, "Launcher, default hooks": 1.06},
        counts_instructions=True,
    )
]
