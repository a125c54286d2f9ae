"""A case of the corpus, and the plain loop that trains it, stops, and resumes in new objects.

The loop stores what a careful user does: the `state_dict()` of the model, the optimizer, the
schedule, and of whatever else has one, the global generators, and the position in the data.
"""

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

SIZE, BATCH, STEPS = 32, 4, 14
PER_EPOCH = SIZE // BATCH
STOPS = (5, 10)
"""Steps at which a training is stopped, in the first epoch and in the second."""


class Rows:
    """Map-style samples of 6 values and a target."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x, self.y = (torch.randn(SIZE, n, generator=generator) for n in (6, 1))

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Net(nn.Module):
    """A model that returns its own loss, as Launcher wants it."""

    def __init__(self, criterion: Any = nn.functional.mse_loss) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
        self.criterion = criterion

    def features(self, x: Tensor) -> Tensor:
        return self.first(x).tanh()

    def forward(self, batch: Any) -> tuple[Tensor, dict[str, Any]]:
        x, y = batch
        return self.criterion(self.last(self.features(x)), y), {}


class Regressor(nn.Linear):
    """A module without a loss, for `model=supervised`."""

    def __init__(self) -> None:
        super().__init__(6, 1)


@dataclass
class Parts:
    """Parts that a user composes."""

    model: nn.Module = field(default_factory=Net)
    dataset: Any = field(default_factory=Rows)
    collate_fn: Any = None
    sampler: Any = None
    batch_sampler: Any = None
    loader: Any = None
    """A loader of the user's own, in place of torch's."""
    optimizer: Callable[[nn.Module], Any] = lambda model: torch.optim.SGD(model.parameters(), 0.05)
    scheduler: Callable[[Any], Any] | None = None
    hooks: list[Any] = field(default_factory=list)

    def make_loader(self) -> Iterable[Any]:
        if self.loader is not None:
            return self.loader
        if self.batch_sampler is not None:
            order = {"batch_sampler": self.batch_sampler}
        else:
            order = {"batch_size": BATCH, "sampler": self.sampler}
        return DataLoader(self.dataset, collate_fn=self.collate_fn, **order)

    def owners(self) -> Iterator[Any]:
        """Yield what may have a `state_dict` of its own, or count epochs."""
        order = (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))
        yield from (self.dataset, self.collate_fn, *order, self.loader)


@dataclass(frozen=True)
class Case:
    make: Callable[[], Parts]
    lost: str | None
    """The end of the path of what a resume would lose, or None if it loses nothing."""
    kind: str = "losing"

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.make.__name__}"


CASES: list[Case] = []


def losing(path: str) -> Callable[[Callable[[], Parts]], Callable[[], Parts]]:
    """Register what a plain loop loses, at a path that ends so."""

    def register(make: Callable[[], Parts]) -> Callable[[], Parts]:
        CASES.append(Case(make, path))
        return make

    return register


def harmless(make: Callable[[], Parts]) -> Callable[[], Parts]:
    """Register what changes no number of a resumed training."""
    CASES.append(Case(make, None, "harmless"))
    return make


def seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


class Loop:
    """The plain loop."""

    def __init__(self, case: Case):
        seed()
        self.parts = case.make()
        self.model, self.loader = self.parts.model, self.parts.make_loader()
        self.optimizer = self.parts.optimizer(self.model)
        make = self.parts.scheduler
        self.scheduler = None if make is None else make(self.optimizer)
        self.step, self.losses = 0, list[float]()
        self.batches: Iterator[Any] = iter(())
        self.view = SimpleNamespace(model=self.model, optimizer=self.optimizer, step=0)
        self.view.unwrapped_model, self.view.data_loader = self.model, self.loader
        self.view.state = self.view
        self.epoch_state: Any = None

    def train(self, until: int) -> list[float]:
        while self.step < until:
            self.one()
        return self.losses

    def one(self) -> None:
        epoch, at = divmod(self.step, PER_EPOCH)
        self.step = self.view.step = self.step + 1
        if at == 0:
            self.begin(epoch)
        batch = next(self.batches)
        self.call("on_before_step")
        self.call("on_batch", batch)
        loss, _ = self.model(batch)
        loss.backward()
        self.call("on_before_optimizer_step")
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scheduler is not None:
            self.scheduler.step()
        self.losses.append(loss.item())
        self.call("on_after_step")

    def begin(self, epoch: int, skip: int = 0) -> None:
        for owner in self.parts.owners():
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
        if not skip:
            self.epoch_state = self.randomness(), self.own_states(order=True)
        # A loader of the user's own has no position, so it is restarted.
        is_of_torch = isinstance(self.loader, DataLoader)
        self.batches = self.after(skip) if is_of_torch else iter(self.loader)

    def after(self, skip: int) -> Iterator[Any]:
        """Continue in an epoch: its order is drawn again, and no sample is loaded twice."""
        now = self.randomness()
        if skip:
            self.restore_randomness(self.epoch_state[0])
            self.load_own(self.epoch_state[1])
        rest = list(islice(self.loader.batch_sampler, skip, None))
        if skip:
            self.restore_randomness(now)
        collate = self.loader.collate_fn
        return (collate([self.loader.dataset[i] for i in batch]) for batch in rest)

    def call(self, event: str, *args: Any) -> None:
        for hook in self.parts.hooks:
            if hasattr(hook, event):
                getattr(hook, event)(self.view, *args)

    # ------------------------------------------------------------------------------------ its state
    def state(self) -> Any:
        hooks = []
        for hook in self.parts.hooks:
            hooks.append({})
            if hasattr(hook, "on_state_dict"):
                hook.on_state_dict(self.view, hooks[-1])
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "random": self.randomness(),
            "epoch": self.epoch_state,
            "step": self.step,
            "own": self.own_states(),
            "hooks": hooks,
        }
        return copy.deepcopy(state)

    def load(self, state: Any) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        for hook, saved in zip(self.parts.hooks, state["hooks"], strict=True):
            if hasattr(hook, "on_load_state_dict"):
                hook.on_load_state_dict(self.view, saved)
        self.step, self.epoch_state = state["step"], state["epoch"]
        if self.step % PER_EPOCH:
            self.begin(*divmod(self.step, PER_EPOCH))
        self.load_own(state["own"])
        self.restore_randomness(state["random"])

    def own_states(self, order: bool = False) -> list[Any]:
        owners = list(self.parts.owners())[2:] if order else self.parts.owners()
        return [o.state_dict() if hasattr(o, "load_state_dict") else None for o in owners]

    def load_own(self, states: list[Any]) -> None:
        owners = list(self.parts.owners())
        for owner, state in zip(owners[-len(states) :], states, strict=True):
            if state is not None:
                owner.load_state_dict(copy.deepcopy(state))

    def randomness(self) -> Any:
        return random.getstate(), np.random.get_state(), torch.get_rng_state()

    def restore_randomness(self, state: Any) -> None:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])


def plain_losses(case: Case) -> list[float]:
    return Loop(case).train(STEPS)


def resumed_losses(case: Case, stop: int) -> list[float]:
    """Return the losses of a training that is stopped at a step and resumed in new objects."""
    first = Loop(case)
    before = list(first.train(stop))
    state = first.state()
    second = Loop(case)
    second.load(state)
    return before + second.train(STEPS)
