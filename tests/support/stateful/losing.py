"""Parts with state that a plain loop does not store, so that a resume loses it."""

import collections
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import ConcatDataset, Sampler, Subset, default_collate

from launcher import BaseHook
from support.stateful.case import BATCH, SIZE, Net, Parts, Rows, losing

# ---------------------------------------------------------------------------------------- datasets


class Noisy(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def draw(self) -> float:
        return float(self.rng.normal())

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + 0.1 * self.draw(), y


@losing("dataset.rng")
def numpy_generator() -> Parts:
    return Parts(dataset=Noisy())


@losing("dataset.rng")
def numpy_random_state() -> Parts:
    class Legacy(Noisy):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.RandomState(0)

    return Parts(dataset=Legacy())


@losing("dataset.rng")
def python_random() -> Parts:
    class Plain(Noisy):
        def __init__(self) -> None:
            super().__init__()
            self.rng = random.Random(0)

        def draw(self) -> float:
            return self.rng.gauss(0, 1)

    return Parts(dataset=Plain())


@losing("dataset.generator")
def torch_generator() -> Parts:
    class OfTorch(Noisy):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def draw(self) -> float:
            return float(torch.randn((), generator=self.generator))

    return Parts(dataset=OfTorch())


@losing("dataset.rng")
def lazy_generator() -> Parts:
    class Lazy(Noisy):
        def __init__(self) -> None:
            super().__init__()
            self.rng = None

        def draw(self) -> float:
            if self.rng is None:
                self.rng = np.random.default_rng(0)
            return float(self.rng.normal())

    return Parts(dataset=Lazy())


class Counting(Rows):
    """A curriculum by the samples that were served."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        x, y = super().__getitem__(index)
        return x * min(1.0, self.count / 50), y


@losing("dataset.count")
def counter() -> Parts:
    return Parts(dataset=Counting())


@losing("dataset.dataset.count")
def counter_in_subset() -> Parts:
    return Parts(dataset=Subset(Counting(), range(SIZE)))


@losing("dataset.datasets.0.dataset.count")
def counter_in_concat() -> Parts:
    half = list(range(SIZE // 2))
    return Parts(dataset=ConcatDataset([Subset(Counting(), half), Subset(Counting(), half)]))


@losing("dataset.rows.count")
def counter_in_wrapper() -> Parts:
    class Cached:
        def __init__(self, rows: Rows) -> None:
            self.rows = rows

        def __len__(self) -> int:
            return SIZE

        def __getitem__(self, index: int) -> Any:
            return self.rows[index]

    return Parts(dataset=Cached(Counting()))


class Jitter:
    def __init__(self, size: float) -> None:
        self.size, self.rng = size, np.random.default_rng(3)

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.size * float(self.rng.normal())


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x


class Transformed(Rows):
    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return self.transform(x), y


@losing("dataset.transform.rng")
def generator_in_transform() -> Parts:
    return Parts(dataset=Transformed(Jitter(0.1)))


@losing("dataset.transform.transforms.1.rng")
def generator_in_list_of_transforms() -> Parts:
    return Parts(dataset=Transformed(Compose([torch.abs, Jitter(0.1)])))


@losing("dataset.transform.train.rng")
def generator_in_dict() -> Parts:
    class ByName:
        def __init__(self, **named: Any) -> None:
            self.__dict__.update(named)

        def __call__(self, x: Tensor) -> Tensor:
            return self.train(x)

    return Parts(dataset=Transformed(ByName(train=Jitter(0.1), test=None)))


@losing("dataset.transform.kw.noise.rng")
def generator_in_keywords() -> Parts:
    class Lookup:
        def __init__(self, kw: dict[str, Any]) -> None:
            self.kw = kw

        def __call__(self, x: Tensor) -> Tensor:
            return self.kw["noise"](x)

    return Parts(dataset=Transformed(Lookup({"noise": Jitter(0.1)})))


@losing("dataset.transform.rng")
def bound_method() -> Parts:
    class Noise(Jitter):
        def apply(self, x: Tensor) -> Tensor:
            return self(x)

    return Parts(dataset=Transformed(Noise(0.1).apply))


@losing("dataset.transform.jitter.rng")
def partial_of_an_object() -> Parts:
    def apply(x: Tensor, jitter: Jitter) -> Tensor:
        return jitter(x)

    return Parts(dataset=Transformed(partial(apply, jitter=Jitter(0.1))))


class Slots:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x / (1 + self.calls % 7)


@losing("dataset.transform.calls")
def slots() -> Parts:
    return Parts(dataset=Transformed(Slots()))


@losing("dataset.transform.calls")
def dataclass_with_a_count() -> Parts:
    @dataclass
    class Warmup:
        length: int = 40
        calls: int = 0

        def __call__(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * min(1.0, self.calls / self.length)

    return Parts(dataset=Transformed(Warmup()))


@losing("dataset.transform.turn")
def itertools_count() -> Parts:
    class Turning:
        def __init__(self) -> None:
            self.turn = itertools.count()

        def __call__(self, x: Tensor) -> Tensor:
            return x.roll(next(self.turn))

    return Parts(dataset=Transformed(Turning()))


@losing("dataset.transform.scales")
def itertools_cycle() -> Parts:
    class Scaling:
        def __init__(self) -> None:
            self.scales = itertools.cycle([0.5, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0])

        def __call__(self, x: Tensor) -> Tensor:
            return x * next(self.scales)

    return Parts(dataset=Transformed(Scaling()))


@losing("dataset.transform.order")
def list_iterator() -> Parts:
    class Ordered:
        def __init__(self) -> None:
            self.order = iter(list(np.linspace(0, 1, 1000)))

        def __call__(self, x: Tensor) -> Tensor:
            return x + float(next(self.order))

    return Parts(dataset=Transformed(Ordered()))


@losing("dataset.stream")
def generator_function() -> Parts:
    class Drawn(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.stream = self.numbers()

        def numbers(self) -> Iterator[float]:
            value = 0.5
            while True:
                value = 3.9 * value * (1 - value)
                yield value

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return x * next(self.stream), y

    return Parts(dataset=Drawn())


@losing("dataset.recent")
def deque_of_samples() -> Parts:
    class Mixed(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.recent: collections.deque[Tensor] = collections.deque(maxlen=5)

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            mixed = x + sum(self.recent, torch.zeros(6)) / 5
            self.recent.append(x)
            return mixed, y

    return Parts(dataset=Mixed())


@losing("dataset.seen")
def counter_of_visits() -> Parts:
    class Visits(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.seen: collections.Counter[int] = collections.Counter()

        def __getitem__(self, index: int) -> Any:
            self.seen[index % 5] += 1
            x, y = super().__getitem__(index)
            return x / self.seen[index % 5], y

    return Parts(dataset=Visits())


@losing("dataset.difficulty")
def tensor_of_weights() -> Parts:
    class Weighted(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.difficulty = torch.ones(8)

        def __getitem__(self, index: int) -> Any:
            self.difficulty[index % 8] *= 0.9
            x, y = super().__getitem__(index)
            return x * self.difficulty.mean(), y

    return Parts(dataset=Weighted())


@losing("dataset.mean")
def array_of_means() -> Parts:
    class Centred(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.mean = np.zeros(6, np.float32)

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            self.mean += 0.1 * (x.numpy() - self.mean)
            return x - torch.from_numpy(self.mean.copy()), y

    return Parts(dataset=Centred())


@losing("dataset.visited")
def set_of_indices() -> Parts:
    class Fresh(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.visited: set[int] = set()

        def __getitem__(self, index: int) -> Any:
            self.visited.add(index)
            x, y = super().__getitem__(index)
            return x * len(self.visited) / SIZE, y

    return Parts(dataset=Fresh())


@losing("dataset.rng")
def state_dict_that_forgets_the_generator() -> Parts:
    class Half(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(0)

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return x + float(self.rng.normal()), y

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    return Parts(dataset=Half())


# --------------------------------------------------------------------------------- collate, order


class Mixup:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)

    def __call__(self, samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        share = float(self.rng.beta(0.5, 0.5))
        return share * x + (1 - share) * x.flip(0), share * y + (1 - share) * y.flip(0)


@losing("collate_fn.rng")
def collate_with_a_generator() -> Parts:
    return Parts(collate_fn=Mixup())


@losing("collate_fn.mixup.rng")
def collate_with_a_part() -> Parts:
    class Collate:
        def __init__(self) -> None:
            self.mixup = Mixup()

        def __call__(self, samples: list[Any]) -> Any:
            return self.mixup(samples)

    return Parts(collate_fn=Collate())


@losing("collate_fn.last")
def collate_with_the_last_batch() -> Parts:
    class Chained:
        def __init__(self) -> None:
            self.last: list[Tensor] = []

        def __call__(self, samples: list[Any]) -> Any:
            x, y = default_collate(samples)
            mixed = x + 0.5 * self.last[0] if self.last else x
            self.last = [x]
            return mixed, y

    return Parts(collate_fn=Chained())


@losing("collate_fn.memory.calls")
def collate_partial_with_a_dict() -> Parts:
    def collate(samples: list[Any], memory: dict[str, int]) -> Any:
        memory["calls"] += 1
        x, y = default_collate(samples)
        return x / memory["calls"], y

    return Parts(collate_fn=partial(collate, memory={"calls": 0}))


@losing("collate_fn.calls")
def collate_function_with_an_attribute() -> Parts:
    def collate(samples: list[Any]) -> Any:
        collate.calls += 1  # type: ignore[attr-defined]
        x, y = default_collate(samples)
        return x / collate.calls, y  # type: ignore[attr-defined]

    collate.calls = 0  # type: ignore[attr-defined]
    return Parts(collate_fn=collate)


@losing("sampler.order")
def sampler_that_shuffles_in_place() -> Parts:
    class Shuffled(Sampler[int]):
        def __init__(self) -> None:
            self.order = list(range(SIZE))

        def __iter__(self) -> Iterator[int]:
            random.shuffle(self.order)
            return iter(list(self.order))

        def __len__(self) -> int:
            return SIZE

    return Parts(sampler=Shuffled())


@losing("sampler.sizes.calls")
def batch_sampler_with_a_part() -> Parts:
    class Turn:
        def __init__(self) -> None:
            self.calls = 0

        def next(self) -> int:
            self.calls += 1
            return self.calls

    class Rotating(Sampler[list[int]]):
        def __init__(self) -> None:
            self.sizes = Turn()

        def __iter__(self) -> Iterator[list[int]]:
            first = self.sizes.next() * 5
            for start in range(first, first + SIZE, BATCH):
                yield [index % SIZE for index in range(start, start + BATCH)]

        def __len__(self) -> int:
            return SIZE // BATCH

    return Parts(batch_sampler=Rotating())


@losing("sampler.hardness")
def sampler_that_a_hook_teaches() -> Parts:
    class Hard(Sampler[int]):
        def __init__(self) -> None:
            self.hardness = torch.ones(SIZE)

        def __iter__(self) -> Iterator[int]:
            return iter(self.hardness.argsort(stable=True).tolist())

        def __len__(self) -> int:
            return SIZE

    class Teach(BaseHook):
        def __init__(self, sampler: Hard) -> None:
            self.sampler = sampler

        def on_after_step(self, trainer: Any) -> None:
            self.sampler.hardness[trainer.step * 7 % SIZE] += 1

    sampler = Hard()
    return Parts(sampler=sampler, hooks=[Teach(sampler)])


@losing("data_loader.shift")
def own_loader_with_a_count() -> Parts:
    class Batches:
        def __init__(self) -> None:
            self.rows, self.shift = Rows(), 0

        def __iter__(self) -> Iterator[Any]:
            for start in range(0, SIZE, BATCH):
                self.shift += 1
                chosen = slice(start, start + BATCH)
                yield self.rows.x[chosen] / self.shift, self.rows.y[chosen]

    return Parts(loader=Batches())


# ------------------------------------------------------------------------------------------- models


@losing("model.calls")
def module_with_a_count() -> Parts:
    class Warm(Net):
        calls = 0

        def forward(self, batch: Any) -> Any:
            self.calls += 1
            loss, records = super().forward(batch)
            return loss * min(1.0, self.calls / 10), records

        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

    return Parts(model=Warm())


@losing("model.temperature")
def module_with_a_temperature() -> Parts:
    class Cooling(Net):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = 2.0

        def features(self, x: Tensor) -> Tensor:
            self.temperature = max(0.5, self.temperature * 0.95)
            return super().features(x) / self.temperature

    return Parts(model=Cooling())


@losing("model.noise.generator")
def module_with_a_generator() -> Parts:
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.1 * torch.randn(x.shape, generator=self.generator)

    class Noised(Net):
        def __init__(self) -> None:
            super().__init__()
            self.noise = Noise()

        def features(self, x: Tensor) -> Tensor:
            return self.noise(super().features(x))

    return Parts(model=Noised())


@losing("model.rng")
def module_with_a_numpy_generator() -> Parts:
    class Dropping(Net):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(0)

        def features(self, x: Tensor) -> Tensor:
            return super().features(x) * float(self.rng.uniform(0.5, 1))

    return Parts(model=Dropping())


@losing("model.mean")
def buffer_that_is_not_persistent() -> Parts:
    class Centred(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(8), persistent=False)

        def features(self, x: Tensor) -> Tensor:
            out = super().features(x)
            self.mean += 0.1 * (out.detach().mean(0) - self.mean)
            return out - self.mean

    return Parts(model=Centred())


@losing("model.hidden")
def module_with_a_carried_tensor() -> Parts:
    class Recurrent(Net):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = torch.zeros(8)

        def features(self, x: Tensor) -> Tensor:
            out = super().features(x) + self.hidden
            self.hidden = out.detach().mean(0)
            return out

    return Parts(model=Recurrent())


@losing("model.queue")
def module_with_a_queue() -> Parts:
    class Contrast(Net):
        def __init__(self) -> None:
            super().__init__()
            self.queue: list[Tensor] = []

        def features(self, x: Tensor) -> Tensor:
            out = super().features(x)
            self.queue = [*self.queue[-3:], out.detach().mean(0)]
            return out - torch.stack(self.queue).mean(0)

    return Parts(model=Contrast())


@losing("model.memory.h")
def module_with_a_dict_of_tensors() -> Parts:
    class Remembering(Net):
        def __init__(self) -> None:
            super().__init__()
            self.memory = {"h": torch.zeros(8)}

        def features(self, x: Tensor) -> Tensor:
            out = super().features(x) + self.memory["h"]
            self.memory["h"] = 0.5 * out.detach().mean(0)
            return out

    return Parts(model=Remembering())


@losing("model.anneal.step")
def module_with_a_schedule() -> Parts:
    class Anneal:
        def __init__(self) -> None:
            self.step = 0

        def value(self) -> float:
            self.step += 1
            return 1 / self.step

    class Annealed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.anneal = Anneal()

        def features(self, x: Tensor) -> Tensor:
            return super().features(x) * self.anneal.value()

    return Parts(model=Annealed())


class Balanced:
    """A loss that is divided by its moving mean."""

    def __init__(self) -> None:
        self.mean = 1.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(output, target)
        self.mean = 0.9 * self.mean + 0.1 * float(loss)
        return loss / self.mean


@losing("model.criterion.mean")
def criterion_with_a_mean() -> Parts:
    return Parts(model=Net(Balanced()))


@losing("model.criterion.history")
def criterion_that_fills_a_list() -> Parts:
    class Relative:
        def __init__(self) -> None:
            self.history: list[float] = []

        def __call__(self, output: Tensor, target: Tensor) -> Tensor:
            loss = nn.functional.mse_loss(output, target)
            self.history.append(float(loss))
            return loss / max(self.history)

    return Parts(model=Net(Relative()))


@losing("model.criterion.calls")
def criterion_module_with_a_count() -> Parts:
    class Ramp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            self.calls += 1
            return nn.functional.mse_loss(output, target) * self.calls

    return Parts(model=Net(Ramp()))


@losing("model.criterion.calls")
def criterion_function_with_an_attribute() -> Parts:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        loss.calls += 1  # type: ignore[attr-defined]
        return nn.functional.mse_loss(output, target) * loss.calls  # type: ignore[attr-defined]

    loss.calls = 0  # type: ignore[attr-defined]
    return Parts(model=Net(loss))


@losing("model.first._forward_hooks.0.calls")
def forward_hook_of_a_module() -> Parts:
    class Scale:
        def __init__(self) -> None:
            self.calls = 0

        def scale(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            self.calls += 1
            return output / self.calls

    model = Net()
    model.first.register_forward_hook(Scale().scale)
    return Parts(model=model)


@losing("model.hidden_teacher.0.weight")
def teacher_that_is_not_a_submodule() -> Parts:
    class Taught(Net):
        def __init__(self) -> None:
            super().__init__()
            self.hidden_teacher = [nn.Linear(6, 8)]

        def features(self, x: Tensor) -> Tensor:
            (teacher,) = self.hidden_teacher
            out = super().features(x)
            with torch.no_grad():
                for mean, p in zip(teacher.parameters(), self.first.parameters(), strict=True):
                    mean.lerp_(p, 0.1)
                return out - teacher(x)

    return Parts(model=Taught())


# ------------------------------------------------------------------------- optimizers and schedules


class Warming(torch.optim.SGD):
    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.05)
        self.updates = 0

    def step(self, closure: Any = None) -> Any:
        self.updates += 1
        for group in self.param_groups:
            group["lr"] = 0.05 / self.updates
        return super().step(closure)


@losing("optimizer.updates")
def optimizer_with_a_count() -> Parts:
    return Parts(optimizer=lambda model: Warming(model.parameters()))


@losing("optimizer.generator")
def optimizer_with_a_generator() -> Parts:
    class Langevin(torch.optim.SGD):
        def __init__(self, params: Any) -> None:
            super().__init__(params, lr=0.05)
            self.generator = torch.Generator().manual_seed(0)

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(0.01 * torch.randn(p.shape, generator=self.generator))

    return Parts(optimizer=lambda model: Langevin(model.parameters()))


@losing("optimizer.slow")
def optimizer_with_slow_weights() -> Parts:
    class Lookahead(torch.optim.SGD):
        def __init__(self, params: Any) -> None:
            super().__init__(params, lr=0.05)
            self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            for slow, p in zip(self.slow, self.param_groups[0]["params"], strict=True):
                slow.lerp_(p, 0.5)
                p.copy_(slow)

    return Parts(optimizer=lambda model: Lookahead(model.parameters()))


@losing("scheduler.lr_lambdas.0.calls")
def schedule_of_a_bound_method() -> Parts:
    class Slower:
        def __init__(self) -> None:
            self.calls = 0

        def factor(self, step: int) -> float:
            self.calls += 1
            return 1 / self.calls

    return Parts(scheduler=lambda optimizer: LambdaLR(optimizer, Slower().factor))


# -------------------------------------------------------------------------------------------- hooks


class Ramp(BaseHook):
    """Scales gradients by the number of steps of this process."""

    def __init__(self) -> None:
        self.count = 0

    def on_before_optimizer_step(self, trainer: Any) -> None:
        self.count += 1
        for p in trainer.model.parameters():
            p.grad.mul_(1 / self.count)


@losing("hooks.Ramp.count")
def hook_with_a_count() -> Parts:
    return Parts(hooks=[Ramp()])


@losing("hooks.GradientNoise.rng")
def hook_with_a_generator() -> Parts:
    class GradientNoise(BaseHook):
        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

        def on_before_optimizer_step(self, trainer: Any) -> None:
            for p in trainer.model.parameters():
                p.grad.add_(0.01 * float(self.rng.normal()))

    return Parts(hooks=[GradientNoise()])


@losing("hooks.Anchor.weights")
def hook_with_copies_of_weights() -> Parts:
    class Anchor(BaseHook):
        def __init__(self) -> None:
            self.weights: dict[str, Tensor] = {}

        def on_before_optimizer_step(self, trainer: Any) -> None:
            for name, p in trainer.model.named_parameters():
                mean = self.weights.get(name, p.detach().clone())
                self.weights[name] = mean.lerp(p.detach(), 0.1)
                p.grad.add_(p.detach() - self.weights[name])

    return Parts(hooks=[Anchor()])


@losing("hooks.Clipped.norms.values")
def hook_with_a_part() -> Parts:
    @dataclass
    class History:
        values: list[float] = field(default_factory=list)

        def largest(self, value: float) -> float:
            self.values.append(value)
            return max(self.values)

    class Clipped(BaseHook):
        def __init__(self) -> None:
            self.norms = History()

        def on_before_optimizer_step(self, trainer: Any) -> None:
            for p in trainer.model.parameters():
                p.grad.div_(self.norms.largest(float(p.grad.norm())) + 1)

    return Parts(hooks=[Clipped()])


@losing("hooks.Partly.rng")
def hook_that_stores_half() -> Parts:
    class Partly(Ramp):
        def __init__(self) -> None:
            super().__init__()
            self.rng = random.Random(0)

        def on_before_optimizer_step(self, trainer: Any) -> None:
            super().on_before_optimizer_step(trainer)
            for p in trainer.model.parameters():
                p.grad.mul_(self.rng.random())

        def on_state_dict(self, trainer: Any, state_dict: Any) -> None:
            state_dict["count"] = self.count

        def on_load_state_dict(self, trainer: Any, state_dict: Any) -> None:
            self.count = state_dict["count"]

    return Parts(hooks=[Partly()])
