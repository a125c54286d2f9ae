"""The default gpt on two ranks over gloo, composed, beside hand-written loops of the same module."""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpt import BATCH, SMALL, Counting, composed
from benchmarks.measure import Benchmark

RANKS, WARM_UP, STEPS, QUICK_STEPS = 2, 6, 60, 5


def by_hand(strategy: str, folder: Path, steps: int) -> float:
    """In a rank: CPU seconds of `steps` steps."""
    import torch.distributed as dist
    from hydra.utils import instantiate
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.nn.utils import clip_grad_norm_

    from launcher.config.compose import compose
    from launcher.train.build import build_optimizer

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    config = compose(["data=synthetic", "model=gpt", f"data.batch_size={BATCH}", *SMALL])
    model = instantiate(config.model)
    if strategy == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = build_optimizer(config.optimizer, model)
    data = instantiate(config.data)
    batches = iter(data.train_loader(seed=0, micro_batch_size=BATCH // RANKS, rank=rank, world_size=RANKS))
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            start = time.process_time()
        loss, _ = model(next(batches))
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return time.process_time() - start


def launched(strategy: str, hooks: str, steps: int) -> float:
    """The same, composed."""
    times: list[float] = []
    trainer, folder = composed([*SMALL, "~scheduler"], WARM_UP + steps + 1, hooks, strategy)
    clock = lambda: times.append(time.process_time())  # noqa: E731
    trainer.data_loader = Counting(trainer.data_loader, steps, clock, clock)
    trainer.train()
    trainer.strategy.teardown()
    folder.cleanup()
    return times[1] - times[0]


def on_two_ranks(strategy: str, hooks: str | None) -> Callable[[bool], float]:
    """CPU milliseconds a step, the mean of the ranks. `hooks`: None is the hand-written loop."""

    def contender(quick: bool) -> float:
        from launcher.dispatch.spawner import Spawner

        steps = QUICK_STEPS if quick else STEPS
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "work.json").write_text(json.dumps([strategy, hooks, steps]))
            spawner = Spawner([sys.executable, "-m", "benchmarks.distributed"], RANKS, folder)
            spawner.run()
            if (failed := spawner.cause()) is not None:
                raise RuntimeError(f"rank {failed.number} failed, exit code {failed.process.returncode}")
            seconds = [json.loads((folder / f"seconds-{rank}.json").read_text()) for rank in range(RANKS)]
        return sum(seconds) / RANKS / steps * 1000

    return contender


def rank(folder: Path) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # as it was before the spawner blocked some
    strategy, hooks, steps = json.loads((folder / "work.json").read_text())
    seconds = by_hand(strategy, folder, steps) if hooks is None else launched(strategy, hooks, steps)
    (folder / f"seconds-{os.environ['RANK']}.json").write_text(json.dumps(seconds))
    os._exit(0)  # gloo's threads may wait forever for a rank that has left


def benchmark(strategy: str) -> Benchmark:
    return Benchmark(
        strategy,
        f"The default gpt, batch {BATCH} x 128 tokens, strategy={strategy} on {RANKS} ranks over gloo",
        "CPU ms a step and rank",
        {
            "hand-written loop": on_two_ranks(strategy, None),
            "Launcher, no hooks": on_two_ranks(strategy, "[]"),
            "Launcher, default hooks": on_two_ranks(strategy, "[progress,logging,checkpointing]"),
        },
        goals={"Launcher, no hooks": 1.05},
    )


BENCHMARKS = [benchmark("ddp"), benchmark("fsdp")]

if __name__ == "__main__":
    rank(Path(sys.argv[-1]))
