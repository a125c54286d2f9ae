"""Cost of a composed loop.

It is the instructions a step of `python -m launcher`'s own trainer for a small model, over a
hand-written loop of the same model, optimizer, scheduler and loader.
"""

from collections.abc import Callable

from benchmarks import gpt
from benchmarks.loop import CLIPS, COUNTED, INTERVAL, WARM_UP, counting
from benchmarks.measure import Benchmark
from benchmarks.turns import Loader

SETTINGS = [
    "model=mlp", "model.hidden_dim=32", "model.num_layers=2", "data=digits", "data.batch_size=8",
    f"trainer.max_grad_norm={CLIPS}",
]  # fmt: skip
HOOKS = [
    f"hooks.progress.interval={INTERVAL}", f"hooks.logging.interval={INTERVAL}",
    "hooks.evaluation.interval=1000",
    "hooks.checkpointing.interval=1000",
]  # fmt: skip


def by_hand(quick: bool) -> float:
    from torch.nn.utils import clip_grad_norm_

    trainer, folder = gpt.composed(SETTINGS, WARM_UP + COUNTED + 1)
    model = trainer.model
    optimizer = trainer.optimizer
    scheduler = trainer.lr_scheduler
    batches = counting(trainer.data_loader)
    for _ in range(WARM_UP + COUNTED + 1):
        loss, _ = model(next(batches))
        loss.backward()
        clip_grad_norm_(model.parameters(), CLIPS)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    folder.cleanup()
    return COUNTED


def launched(hooks: str) -> Callable[[bool], float]:
    def contender(quick: bool) -> float:
        trainer, folder = gpt.composed(
            [*SETTINGS, *(HOOKS if hooks == "[default]" else [])], WARM_UP + COUNTED + 1, hooks
        )
        trainer.data_loader = Loader(trainer.data_loader, counting)
        trainer.train()
        folder.cleanup()
        return COUNTED

    return contender


BENCHMARKS = [
    Benchmark(
        "composed",
        "A small model that Hydra composes: mlp on digits, batch 8, clipping",
        "instructions a step",
        {
            "hand-written loop": by_hand,
            "Launcher, no hooks": launched("[]"),
            "Launcher, default hooks": launched("[default]"),
        },
        goals={"Launcher, no hooks": 1.01, "Launcher, default hooks": 1.04},
        counts_instructions=True,
    )
]
