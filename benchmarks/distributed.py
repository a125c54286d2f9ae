"""The default gpt on two ranks over gloo, composed.

It is compared with hand-written loops of the same module.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpt import BATCH, SMALL, composed
from benchmarks.measure import Benchmark, Figure
from benchmarks.turns import Loader, Turns

RANKS = 2


def by_hand(strategy: str, folder: Path, turns: Turns) -> list[float]:
    """Return a rank's CPU milliseconds a step, of each turn."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.nn.utils import clip_grad_norm_

    from benchmarks.measure import configure
    from launcher.config.construct import instantiate
    from launcher.train.build import build_optimizer

    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    config = configure(["data=synthetic", "model=gpt", f"data.batch_size={BATCH}", *SMALL])
    model = instantiate(config.plain["model"], "model")
    if strategy == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = build_optimizer(config.plain["optimizer"], model)
    data = instantiate(config.plain["data"], "data")
    batches = iter(
        data.train_loader(seed=0, micro_batch_size=BATCH // RANKS, rank=rank, world_size=RANKS)
    )

    def step() -> None:
        loss, _ = model(next(batches))
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return turns.train(step)


def launched(strategy: str, hooks: str, turns: Turns) -> list[float]:
    """The same, composed."""
    trainer, folder = composed([*SMALL, "~scheduler"], turns.steps + 1, hooks, strategy)
    trainer.data_loader = Loader(trainer.data_loader, turns.batches)
    trainer.train()
    trainer.strategy.teardown()
    folder.cleanup()
    return turns.milliseconds


def on_two_ranks(strategy: str, hooks: str | None) -> Callable[[bool], Figure]:
    """CPU milliseconds a step, the mean of the ranks. `hooks`: None is the hand-written loop."""

    def contender(quick: bool) -> Figure:
        from launcher.dispatch.spawner import Spawner

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "work.json").write_text(json.dumps([strategy, hooks, quick]))
            spawner = Spawner([sys.executable, "-m", "benchmarks.distributed"], RANKS, folder)
            spawner.run()
            if any(codes := [child.process.returncode for child in spawner.ranks]):
                raise RuntimeError(f"the ranks ended with {codes}")
            figures = [
                json.loads((folder / f"figures-{rank}.json").read_text()) for rank in range(RANKS)
            ]
        return [sum(ranks) / RANKS for ranks in zip(*figures, strict=True)]

    return contender


def rank(folder: Path) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # as it was before the spawner blocked some
    strategy, hooks, quick = json.loads((folder / "work.json").read_text())
    turns = Turns(quick, int(os.environ["RANK"]))
    figures = (
        by_hand(strategy, folder, turns) if hooks is None else launched(strategy, hooks, turns)
    )
    (folder / f"figures-{os.environ['RANK']}.json").write_text(json.dumps(figures))
    os._exit(0)  # gloo's threads may wait forever for a rank that has left


def benchmark(strategy: str) -> Benchmark:
    return Benchmark(
        strategy,
        f"The default gpt, batch {BATCH} x 128 tokens, strategy={strategy} on {RANKS} ranks over"
        " gloo",
        "CPU ms a step and rank",
        {
            "hand-written loop": on_two_ranks(strategy, None),
            "Launcher, no hooks": on_two_ranks(strategy, "[]"),
            "Launcher, default hooks": on_two_ranks(strategy, "[progress,logging,checkpointing]"),
        },
        goals={"Launcher, no hooks": 1.05, "Launcher, default hooks": 1.05},
        takes_turns=True,
        ranks=RANKS,
    )


BENCHMARKS = [benchmark("ddp"), benchmark("fsdp")]

if __name__ == "__main__":
    rank(Path(sys.argv[-1]))
