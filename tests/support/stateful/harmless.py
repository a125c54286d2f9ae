"""Attributes that a resume need not restore, or that are restored by their owners."""

import functools
import itertools
import logging
import random
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.utils.data import ConcatDataset, Sampler, Subset, default_collate
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

from launcher import BaseHook
from support.stateful.case import BATCH, SIZE, Net, Parts, Rows, harmless
from support.stateful.losing import Counting, Noisy, Warming


@harmless
def nothing() -> Parts:
    return Parts()


@harmless
def adam_and_cosine() -> Parts:
    return Parts(
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), 0.01),
        scheduler=lambda optimizer: CosineAnnealingLR(optimizer, 20),
    )


@harmless
def batch_norm() -> Parts:
    model = Net()
    model.first = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))  # type: ignore[assignment]
    return Parts(model=model)


@harmless
def spectral_norm() -> Parts:
    model = Net()
    nn.utils.parametrizations.spectral_norm(model.first)
    return Parts(model=model)


@harmless
def recurrent_layer() -> Parts:
    class Recurrent(Net):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(1, 8, batch_first=True)

        def features(self, x: Tensor) -> Tensor:
            return self.rnn(x[..., None])[0][:, -1]

    return Parts(model=Recurrent())


@harmless
def dropout_of_global_generators() -> Parts:
    model = Net()
    model.first = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3))  # type: ignore[assignment]
    return Parts(model=model)


@harmless
def transformer_layer() -> Parts:
    class Attending(Net):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def features(self, x: Tensor) -> Tensor:
            return self.layer(super().features(x)[:, None])[:, 0]

    return Parts(model=Attending())


@harmless
def tied_weights() -> Parts:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.first

        def features(self, x: Tensor) -> Tensor:
            return super().features(x) + self.again(x)

    return Parts(model=Tied())


@harmless
def list_of_parameters() -> Parts:
    class Penalised(Net):
        def __init__(self) -> None:
            super().__init__()
            self.penalised = [self.first.weight, self.last.weight]

        def forward(self, batch: Any) -> Any:
            loss, records = super().forward(batch)
            return loss + 0.01 * sum(p.square().sum() for p in self.penalised), records

    return Parts(model=Penalised())


@harmless
def views_of_parameters() -> Parts:
    class Penalised(Net):
        def __init__(self) -> None:
            super().__init__()
            self.views = [p.detach().view(-1) for p in self.parameters()]

        def forward(self, batch: Any) -> Any:
            loss, records = super().forward(batch)
            return loss * (1 + sum(view.square().sum() for view in self.views)), records

    return Parts(model=Penalised())


@harmless
def mask_that_is_made_once() -> Parts:
    class Masked(Net):
        def __init__(self) -> None:
            super().__init__()
            self.mask: Tensor | None = None

        def features(self, x: Tensor) -> Tensor:
            if self.mask is None:
                self.mask = torch.arange(8) > 1
            return super().features(x) * self.mask

    return Parts(model=Masked())


@harmless
def flag_that_is_set_once() -> Parts:
    class Flagged(Net):
        def __init__(self) -> None:
            super().__init__()
            self.has_run = False

        def features(self, x: Tensor) -> Tensor:
            self.has_run = True
            return super().features(x)

    return Parts(model=Flagged())


@harmless
def output_kept_for_a_hook() -> Parts:
    class Kept(Net):
        def __init__(self) -> None:
            super().__init__()
            self.output: Tensor | None = None

        def features(self, x: Tensor) -> Tensor:
            self.output = super().features(x)
            return self.output

    return Parts(model=Kept())


@harmless
def cache_that_is_named() -> Parts:
    class Caching(Net):
        not_state = ("cache", "newest")

        def __init__(self) -> None:
            super().__init__()
            self.cache: dict[float, Tensor] = {}
            self.newest = 0.0

        def features(self, x: Tensor) -> Tensor:
            out = super().features(x)
            self.cache[float(out.sum())] = out.detach()
            self.newest = float(out.mean())
            return out

    return Parts(model=Caching())


@harmless
def buffer_of_frequencies() -> Parts:
    class Rotary(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("inverse", torch.arange(8) / 8, persistent=False)

        def features(self, x: Tensor) -> Tensor:
            return super().features(x) * self.inverse

    return Parts(model=Rotary())


@harmless
def extra_state() -> Parts:
    class Warm(Net):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, batch: Any) -> Any:
            self.calls += 1
            loss, records = super().forward(batch)
            return loss * min(1.0, self.calls / 10), records

        def get_extra_state(self) -> Any:
            return {"calls": self.calls}

        def set_extra_state(self, state: Any) -> None:
            self.calls = state["calls"]

    return Parts(model=Warm())


@harmless
def buffer_in_the_state() -> Parts:
    class Counted(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def features(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().features(x) / self.calls

    return Parts(model=Counted())


@harmless
def constants() -> Parts:
    class Configured(Net):
        def __init__(self) -> None:
            super().__init__()
            self.config = {"dims": [6, 8], "name": "net", "path": Path("x")}
            self.scale, self.generator = 0.5, torch.Generator().manual_seed(1)

        def features(self, x: Tensor) -> Tensor:
            return super().features(x) * self.scale

    return Parts(model=Configured())


# ---------------------------------------------------------------------------------------- datasets


@harmless
def lru_cache() -> Parts:
    class Cached(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.read = functools.lru_cache(maxsize=8)(self.load)

        def load(self, index: int) -> Any:
            return super().__getitem__(index)

        def __getitem__(self, index: int) -> Any:
            return self.read(index)

    return Parts(dataset=Cached())


@harmless
def cached_property() -> Parts:
    class Scaled(Rows):
        @functools.cached_property
        def scale(self) -> Tensor:
            return self.x.std()

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return x / self.scale, y

    return Parts(dataset=Scaled())


@harmless
def file_that_is_opened_late() -> Parts:
    class Opened(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.file: Any = None

        def __getitem__(self, index: int) -> Any:
            if self.file is None:
                self.file = tempfile.TemporaryFile()  # noqa: SIM115
            self.file.write(b"x")
            return super().__getitem__(index)

    return Parts(dataset=Opened())


@harmless
def memory_map_that_is_opened_late() -> Parts:
    class Mapped(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.values: Any = None

        def __getitem__(self, index: int) -> Any:
            if self.values is None:
                with tempfile.NamedTemporaryFile() as file:
                    self.values = np.memmap(file, np.float32, "w+", shape=(SIZE,))
            x, y = super().__getitem__(index)
            return x + float(self.values[index]), y

    return Parts(dataset=Mapped())


@harmless
def lock_logger_and_references() -> Parts:
    class Guarded(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.lock, self.logger = threading.Lock(), logging.getLogger("rows")
            self.event, self.me = threading.Event(), weakref.ref(self)

        def __getitem__(self, index: int) -> Any:
            with self.lock:
                self.event.set()
                return super().__getitem__(index)

    return Parts(dataset=Guarded())


@harmless
def noise_of_global_generators() -> Parts:
    class Global(Noisy):
        def draw(self) -> float:
            return random.random() + float(np.random.rand()) + float(torch.rand(()))

    return Parts(dataset=Global())


@harmless
def noise_seeded_by_the_index() -> Parts:
    class Seeded(Noisy):
        def __getitem__(self, index: int) -> Any:
            x, y = Rows.__getitem__(self, index)
            return x + float(np.random.default_rng(index).normal()), y

    return Parts(dataset=Seeded())


@harmless
def dataset_with_its_state() -> Parts:
    class Stored(Counting):
        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    return Parts(dataset=Stored())


@harmless
def generator_with_its_state() -> Parts:
    class Stored(Noisy):
        def state_dict(self) -> dict[str, Any]:
            return {"noise": self.rng.bit_generator.state}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.rng.bit_generator.state = state["noise"]

    return Parts(dataset=Stored())


@harmless
def epoch_of_a_dataset() -> Parts:
    class Epochs(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.epoch, self.order = 0, list(range(SIZE))

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch
            self.order = np.random.default_rng(epoch).permutation(SIZE).tolist()

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(self.order[index])
            return x / (1 + self.epoch), y

    return Parts(dataset=Epochs())


@harmless
def large_data() -> Parts:
    class Large(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.values = torch.zeros(1_000_000)
            self.names = [f"sample-{number}" for number in range(200_000)]
            self.index = {name: number for number, name in enumerate(self.names)}

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(self.index[self.names[index]])
            return x + self.values[index], y

    return Parts(dataset=Large())


@harmless
def subsets_and_concatenation() -> Parts:
    halves = [Subset(Rows(), range(0, SIZE, 2)), Subset(Rows(), range(1, SIZE, 2))]
    return Parts(dataset=ConcatDataset(halves))


@harmless
def iterators_that_rest() -> Parts:
    class Resting(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.numbers, self.turns = iter([1, 2, 3]), itertools.cycle([1, 2])

    return Parts(dataset=Resting())


@harmless
def times_of_reading() -> Parts:
    class Timed(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.opened, self.read = time.time(), 0.0

        def __getitem__(self, index: int) -> Any:
            self.read = time.perf_counter()
            return super().__getitem__(index)

    return Parts(dataset=Timed())


@harmless
def ordered_dict_of_constants() -> Parts:
    class Named(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.columns = OrderedDict(x=6, y=1)
            self.statistics = {"mean": self.x.mean(0), "std": self.x.std(0)}

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return (x - self.statistics["mean"]) / self.statistics["std"], y

    return Parts(dataset=Named())


# --------------------------------------------------------------------------------- collate, order


@harmless
def collate_object() -> Parts:
    class Collate:
        def __init__(self) -> None:
            self.scale, self.keys = 0.5, ["x", "y"]

        def __call__(self, samples: list[Any]) -> Any:
            x, y = default_collate(samples)
            return self.scale * x, y

    return Parts(collate_fn=Collate())


@harmless
def collate_with_a_generator_of_the_system() -> Parts:
    class Collate:
        def __init__(self) -> None:
            self.random = random.SystemRandom()

        def __call__(self, samples: list[Any]) -> Any:
            self.random.random()
            return default_collate(samples)

    return Parts(collate_fn=Collate())


@harmless
def collate_with_its_state() -> Parts:
    class Collate:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, samples: list[Any]) -> Any:
            self.calls += 1
            x, y = default_collate(samples)
            return x / self.calls, y

        def state_dict(self) -> Any:
            return {"calls": self.calls}

        def load_state_dict(self, state: Any) -> None:
            self.calls = state["calls"]

    return Parts(collate_fn=Collate())


@harmless
def sampler_of_global_generators() -> Parts:
    return Parts(sampler=torch.utils.data.RandomSampler(Rows()))


@harmless
def distributed_sampler() -> Parts:
    return Parts(sampler=DistributedSampler(Rows(), num_replicas=1, rank=0))


@harmless
def sampler_with_epochs() -> Parts:
    class Epochs(Sampler[int]):
        def __init__(self) -> None:
            self.epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter(np.random.default_rng(self.epoch).permutation(SIZE).tolist())

        def __len__(self) -> int:
            return SIZE

    return Parts(sampler=Epochs())


@harmless
def buckets_made_once() -> Parts:
    class Buckets(Sampler[list[int]]):
        def __init__(self) -> None:
            self.buckets: list[list[int]] = []

        def __iter__(self) -> Iterator[list[int]]:
            if not self.buckets:
                self.buckets = [list(range(n, n + BATCH)) for n in range(0, SIZE, BATCH)]
            return iter(self.buckets)

        def __len__(self) -> int:
            return SIZE // BATCH

    return Parts(batch_sampler=Buckets())


# -------------------------------------------------------------------------------------------- hooks


@harmless
def hook_with_its_state() -> Parts:
    class Ramp(BaseHook):
        def __init__(self) -> None:
            self.count, self.means = 0, {"norm": 0.0}

        def on_before_optimizer_step(self, trainer: Any) -> None:
            self.count += 1
            self.means["norm"] += 0.1
            for p in trainer.model.parameters():
                p.grad.mul_(self.means["norm"] / self.count)

        def on_state_dict(self, trainer: Any, state_dict: Any) -> None:
            state_dict["ramp"] = {"count": self.count, "means": dict(self.means)}

        def on_load_state_dict(self, trainer: Any, state_dict: Any) -> None:
            self.count = state_dict["ramp"]["count"]
            self.means = dict(state_dict["ramp"]["means"])

    return Parts(hooks=[Ramp()])


@harmless
def hook_that_measures() -> Parts:
    class Measure(BaseHook):
        def __init__(self) -> None:
            self.started, self.beat = time.monotonic(), 0

        def on_after_step(self, trainer: Any) -> None:
            self.started, self.beat = time.monotonic(), time.time_ns()

    return Parts(hooks=[Measure()])


@harmless
def hook_with_a_progress_bar() -> Parts:
    class Bar(BaseHook):
        def __init__(self) -> None:
            self.bar = tqdm(total=SIZE, disable=None, file=open("/dev/null", "w"))  # noqa: SIM115

        def on_after_step(self, trainer: Any) -> None:
            self.bar.update()

    return Parts(hooks=[Bar()])


@harmless
def hook_that_prints_seldom() -> Parts:
    class Print(BaseHook):
        not_state = ("calls", "lines")

        def __init__(self) -> None:
            self.calls, self.lines = 0, list[str]()

        def on_after_step(self, trainer: Any) -> None:
            self.calls += 1
            self.lines.append(f"call {self.calls}")

    return Parts(hooks=[Print()])


@harmless
def hook_with_references() -> Parts:
    class Holding(BaseHook):
        def __init__(self) -> None:
            self.model: Any = None
            self.parameters: list[Any] = []

        def on_before_step(self, trainer: Any) -> None:
            self.model, self.optimizer = trainer.model, trainer.optimizer
            self.parameters = list(trainer.model.parameters())

    return Parts(hooks=[Holding()])


@harmless
def schedule_of_a_function() -> Parts:
    return Parts(scheduler=lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)))


@harmless
def schedule_with_attributes() -> Parts:
    class Stepped(torch.optim.lr_scheduler.LRScheduler):
        def __init__(self, optimizer: Any) -> None:
            self.calls = 0
            super().__init__(optimizer)

        def get_lr(self) -> list[float]:
            self.calls += 1
            return [0.1 / self.calls for _ in self.optimizer.param_groups]

    return Parts(scheduler=Stepped)


@harmless
def optimizer_with_its_state() -> Parts:
    class Stored(Warming):
        def state_dict(self) -> Any:
            return {**super().state_dict(), "updates": self.updates}

        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state)
            self.updates = state["updates"]

    return Parts(optimizer=lambda model: Stored(model.parameters()))
