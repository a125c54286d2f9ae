"""Resume a plain `torch.utils.data.DataLoader` at any batch, without loading earlier ones."""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from launcher.data.batch_samples import NotedSizes
from launcher.data.iterable import (
    State,
    explain_lost_state,
    has_state,
    is_stream,
    length,
    pickle_state,
)
from launcher.process.ranks import world_size
from launcher.process.rng import call_isolated, host_state, host_tree, restore_rng

NAMES = ("sampler", "batch_sampler")
COMPARED_ITEMS = 64
"""Items of an order that are compared to find a state that is not stored."""
WORKERS_DRAW_ANEW = (
    "The data loader resumes within its epoch. Random numbers that a dataset draws in a worker are"
    " not repeated; with num_workers=0 they are."
)
UNCHANGED = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator", "prefetch_factor", "pin_memory_device",
)  # fmt: skip
"""Arguments of a DataLoader that its order does not concern."""
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class PlainLoader:
    """The epochs of a map-style DataLoader, and the position in the current epoch.

    A sampler may draw from the global generators, or from generators that are attributes of the
    sampler or the loader. Their states and the sampler's own `state_dict` are stored when the
    sampler begins an epoch. A resume restores them, runs the sampler up to the position, and only
    then loads samples. Without workers a dataset's own `state_dict` is stored at each checkpoint.
    """

    def __init__(self, loader: DataLoader[object], logger: logging.Logger):
        self.loader, self.logger, self.consumed = loader, logger, 0
        self.batch_samples: int | None = None
        """The samples of the batch that was yielded last, or None if that is not known."""
        self._order = ResumableSampler(loader)
        self._sizes = NotedSizes(self._order, loader.batch_sampler is not None)
        self._epochs: DataLoader[object] | None = None
        self._dataset_state: bytes | None = None

    def __iter__(self) -> Iterator[object]:
        if self._epochs is None:
            self._warn()
            self._epochs = with_order(self.loader, self._sizes)
        self.consumed = self._order.position or 0
        # A dataset may restart at `set_epoch`, which has been called.
        state, self._dataset_state = self._dataset_state, None
        if state is not None:
            self.dataset.load_state_dict(pickle.loads(state))
        return self._count(iter(self._epochs))

    def _count(self, batches: Iterator[object]) -> Iterator[object]:
        for batch in batches:
            self.consumed += 1
            self.batch_samples = self._sizes.take()
            yield batch

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    @property
    def is_at_end(self) -> bool:
        return self.consumed >= len(self.loader)

    def _keeps_state(self) -> bool:
        return has_state(self.dataset) and not self.loader.num_workers

    def _warn(self) -> None:
        if has_state(self.dataset) and self.loader.num_workers:
            self.logger.warning("The data loader has workers: %s", explain_lost_state(self.dataset))
        if has_hidden_state(self.loader):
            self.logger.warning(
                "The order of %s depends on something that a checkpoint does not have, so a resume"
                " continues with other samples; give it state_dict and load_state_dict, or keep"
                " only numbers and random generators.",
                type(self._order.inner).__name__,
            )

    def state_dict(self) -> State:
        state = {"consumed": self.consumed, "order": self._order.state, **self._extent()}
        if self._keeps_state():
            # The copy is not changed by the next batch.
            copied = pickle_state(self.dataset, self.dataset.state_dict())
            state["dataset"] = pickle.loads(copied)
        return state

    def load_state_dict(self, state: State) -> None:
        """Continue at `state`'s position, or at its epoch's start if the loader has changed."""
        if "consumed" not in state or state["order"] is None:
            return
        for name, now in self._extent().items():
            if state.get(name) != now:
                self.logger.warning(
                    "The data loader has changed since the checkpoint, from %s=%s to %s: the"
                    " epoch's order starts from the beginning.",
                    name,
                    state.get(name),
                    now,
                )
                return
        self._order.begin_at(state["order"], state["consumed"])
        if self._keeps_state() and "dataset" in state:
            self._dataset_state = pickle.dumps(state["dataset"])
        if not self.loader.num_workers:
            return
        if state["order"].get("is_lazy"):
            self.logger.warning(
                "The sampler draws from the global generators while workers load ahead, so the"
                " order of this epoch differs from here on; let it draw its whole order at once, or"
                " use num_workers=0."
            )
        if state["consumed"]:
            self.logger.info(WORKERS_DRAW_ANEW)

    def _extent(self) -> dict[str, int | None]:
        samples, batches = length(self.dataset), length(self.loader)
        return {"world_size": world_size(), "samples": samples, "batches": batches}


class ResumableSampler:
    """View of a loader's sampler or batch sampler, from any position of an epoch.

    `state` has the states of the generators and samplers when the sampler began the current epoch.
    """

    def __init__(self, loader: DataLoader[object]):
        self.inner = inner_order(loader)
        self.loader = loader
        self.state: State | None = None
        self.position: int | None = None
        self._initial = own_numbers(loader)

    def begin_at(self, state: State, position: int) -> None:
        self.state, self.position = state, position

    def __iter__(self) -> Iterator[object]:
        position, self.position = self.position, None
        if position is None:
            self.state = self._note_state()
            yield from self._watch(iter(self.inner))
        else:
            # The resumed generators have already advanced past these draws.
            yield from call_isolated(lambda: self._from(position))

    def __len__(self) -> int:
        return len(self.inner)

    def _watch(self, order: Iterator[object]) -> Iterator[object]:
        """Note whether the sampler draws from the global generators with its second item too."""
        assert self.state is not None
        yield from islice(order, 1)
        before = global_states()
        second = list(islice(order, 1))
        self.state["is_lazy"] = global_states() != before
        yield from second
        yield from order

    def _from(self, position: int) -> Iterator[object]:
        state = self.state
        assert state is not None
        restore_rng(state["global"])
        restore_own(self.loader, state)
        rest: Iterator[Any] = iter(self.inner)
        # The sampler draws its order here, even if nothing is skipped.
        first = list(islice(rest, 1))
        if not first and state["samplers"]:
            # A sampler that knows its position has begun at the end of the epoch before.
            restore_rng(state["global"])
            restore_own(self.loader, {**state, "samplers": {}})
            rest = iter(self.inner)
            first = list(islice(rest, 1))
        rest = self._watch(chain(first, rest))
        # The sampler draws for the skipped items here, from the generators that are restored.
        next(islice(rest, position, position), None)
        return rest

    def _note_state(self) -> State:
        state = own_state(self.loader)
        # A sampler may count its epochs. Unchanged numbers may come from a configuration.
        numbers = {key: n for key, n in state["numbers"].items() if self._initial.get(key) != n}
        return {"global": host_tree(host_state()), **state, "numbers": numbers}


def global_states() -> list[object]:
    """Return the states of the CPU's global generators, comparable by `==`."""
    of_python, of_numpy, of_torch = host_state()
    return [of_python, [np.asarray(part).tolist() for part in of_numpy], of_torch.tolist()]


def resumable(loader: Any, logger: logging.Logger) -> Any:
    """Return the loader, or a wrapper that gives the same batches and has a `state_dict`."""
    return PlainLoader(loader, logger) if is_plain(loader) else loader


def is_plain(loader: object) -> bool:
    """Return whether this is a torch DataLoader of a map-style dataset in its sampler's order."""
    return (
        isinstance(loader, DataLoader)
        and iterates_as_torch(loader)
        and not isinstance(loader.dataset, IterableDataset)
        and getattr(loader, "in_order", True)
    )


def iterates_as_torch(loader: DataLoader[object]) -> bool:
    """Return whether iterating over a DataLoader, or its subclass, is torch's own code."""
    return type(loader).__iter__ is DataLoader.__iter__ and not hasattr(loader, "state_dict")


def inner_order(loader: DataLoader[object]) -> Any:
    """Return what yields a loader's lists of indices, or its indices if it makes no batches."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def why_not_exact(loader: object) -> str:
    """Explain why the position of a loader without `state_dict` is not known, for a message."""
    if isinstance(loader, DataLoader):
        if isinstance(loader.dataset, IterableDataset):
            return "its dataset is iterable"
        if not getattr(loader, "in_order", True):
            return "in_order=False lets workers decide on the order"
    return f"{type(loader).__name__} is not a plain DataLoader and has no state_dict()"


def with_order(loader: DataLoader[object], order: object) -> DataLoader[object]:
    """Return the loader with another order of its batches, or of samples if it makes none."""
    ordered: dict[str, Any] = {"batch_sampler": order}
    if loader.batch_sampler is None:
        ordered = {"sampler": order, "batch_size": None}
    unchanged: dict[str, Any] = {name: getattr(loader, name) for name in UNCHANGED}
    return DataLoader(
        loader.dataset,
        **ordered,
        **unchanged,
        # A worker that persists would not see the dataset's next epoch.
        persistent_workers=loader.persistent_workers and not hasattr(loader.dataset, "set_epoch"),
    )


def set_epoch(loader: object, epoch: int) -> None:
    """Call `set_epoch` of the loader, its samplers and its dataset, if they have it."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    inner = [getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)]
    dataset = loader.dataset if isinstance(loader, DataLoader) else None
    owners = [loader, dataset, batch_sampler, *inner]
    for owner in {id(owner): owner for owner in owners}.values():
        if method := getattr(owner, "set_epoch", None):
            method(epoch)


def own_attributes(loader: object) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each attribute of a loader's samplers, and of its generator."""
    yield "generator", getattr(loader, "generator", None)
    for path, sampler in samplers(loader).items():
        for name, value in vars(sampler).items():
            yield f"{path}{name}", value


def own_generators(loader: object) -> dict[str, object]:
    return {path: value for path, value in own_attributes(loader) if isinstance(value, GENERATORS)}


def own_numbers(loader: object) -> dict[str, float]:
    return {path: value for path, value in own_attributes(loader) if type(value) in (int, float)}


def samplers(loader: object) -> dict[str, Any]:
    """List a loader's sampler and batch sampler, and the samplers inside them, by path."""
    by_path: dict[str, object] = {}

    def collect(attributes: dict[str, object], prefix: str) -> None:
        for name, value in attributes.items():
            is_sampler = isinstance(value, Sampler) or name in NAMES
            is_new = not any(value is other for other in by_path.values())
            if is_sampler and is_new and hasattr(value, "__dict__"):
                by_path[f"{prefix}{name}."] = value
                collect(vars(value), f"{prefix}{name}.")

    collect({name: getattr(loader, name, None) for name in NAMES}, "")
    return by_path


def stateful_samplers(loader: object) -> dict[str, Any]:
    return {path: sampler for path, sampler in samplers(loader).items() if has_state(sampler)}


def has_hidden_state(loader: DataLoader[object]) -> bool:
    """Return whether a resume in the second epoch has another order, tried with copies."""
    if all(type(sampler).__module__.startswith("torch.") for sampler in samplers(loader).values()):
        return False
    try:
        return call_isolated(lambda: _differs_after_resume(loader))
    # A sampler of the user may fail in any way.
    except Exception:
        return False


def _differs_after_resume(loader: DataLoader[object]) -> bool:
    straight, resumed = _copy_order(loader), _copy_order(loader)
    list(islice(straight, COMPARED_ITEMS))
    expected = list(islice(straight, COMPARED_ITEMS))
    assert straight.state is not None
    if straight.state["is_lazy"]:
        # Its order depends on what else draws.
        return False
    resumed.begin_at(straight.state, 0)
    return pickle.dumps(list(islice(resumed, COMPARED_ITEMS))) != pickle.dumps(expected)


def _copy_order(loader: DataLoader[object]) -> ResumableSampler:
    parts = {name: getattr(loader, name) for name in (*NAMES, "generator")}
    # They share the dataset.
    copies: Any = SimpleNamespace(**deepcopy(parts, {id(loader.dataset): loader.dataset}))
    return ResumableSampler(copies)


def own_state(loader: object) -> State:
    """Copy what a loader and its samplers keep: generators, numbers, and states of samplers."""
    return {
        "own": {name: _get_state(value) for name, value in own_generators(loader).items()},
        "numbers": own_numbers(loader),
        "samplers": {
            path: deepcopy(sampler.state_dict())
            for path, sampler in stateful_samplers(loader).items()
        },
    }


def restore_own(loader: object, state: State) -> None:
    """Restore what `own_state` has returned, where the loader still has it."""
    owners, generators = samplers(loader), own_generators(loader)
    for path, number in state["numbers"].items():
        prefix, _, name = path.rpartition(".")
        if f"{prefix}." in owners:
            setattr(owners[f"{prefix}."], name, number)
    for name in generators.keys() & state["own"].keys():
        _set_state(generators[name], state["own"][name])
    for path in stateful_samplers(loader).keys() & state["samplers"].keys():
        owners[path].load_state_dict(deepcopy(state["samplers"][path]))


@contextmanager
def keep_loader_state(loader: object) -> Iterator[None]:
    """Restore the state of a loader, its samplers and its dataset at the end of the context."""
    dataset: Any = getattr(loader, "dataset", None)
    keeps_state = not is_stream(dataset) and has_state(dataset)
    state, of_data = own_state(loader), deepcopy(dataset.state_dict()) if keeps_state else None
    try:
        yield
    finally:
        restore_own(loader, state)
        if keeps_state:
            dataset.load_state_dict(of_data)


def _get_state(generator: Any) -> object:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate((state[0], tuple(state[1]), state[2]))
    else:
        generator.set_state(state)
