"""Resume a plain `torch.utils.data.DataLoader` at any batch, without loading earlier ones."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from launcher.data.batch_samples import NotedSizes
from launcher.data.declared import (
    State,
    add_restored,
    epoch_owners,
    has_epochs,
    has_state,
    hidden_parts,
    in_workers,
    is_number,
    is_stream,
    kept,
    names_of_states,
    pickle_state,
    samplers,
    state_owner,
)
from launcher.data.iterable import length
from launcher.data.workers import begin_pass
from launcher.process.object_marks import Restored
from launcher.process.ranks import world_size
from launcher.process.rng import (
    call_isolated,
    get_generator_state,
    host_state,
    host_tree,
    is_generator,
    restore_rng,
    set_generator_state,
)

logger = logging.getLogger(__name__)
ORDERS = ("sampler", "batch_sampler")
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


class PlainLoader:
    """The epochs of a map-style DataLoader, and the position in the current epoch.

    A sampler may draw from the global generators, or from generators that are attributes of the
    sampler or the loader. Their states and the sampler's own `state_dict` are stored when the
    sampler begins an epoch. A resume restores them, runs the sampler up to the position, and only
    then loads samples. Without workers a dataset's own `state_dict` is stored at each checkpoint.
    """

    def __init__(self, loader: DataLoader[object], logger: logging.Logger):
        self.loader = loader
        self.logger = logger
        self.consumed = 0
        self.batch_samples: int | None = None
        """The samples of the batch that was yielded last, or None if that is not known."""
        self._order = ResumableSampler(loader, self._report_change)
        self._sizes = NotedSizes(self._order, loader.batch_sampler is not None)
        self._epochs: DataLoader[object] | None = None
        # A worker has states of its own.
        keeps_state = not loader.num_workers
        self._owner = state_owner(loader.dataset, loader.collate_fn) if keeps_state else None
        self._dataset_state: bytes | None = None
        self._has_hidden_state = False

    def __iter__(self) -> Iterator[object]:
        if self._epochs is None:
            self._warn()
            self._epochs = with_order(self.loader, self._sizes)
        # A dataset may have another length in each epoch, or restart: `set_epoch` has been called.
        self._check_samples()
        self.consumed = self._order.position or 0
        state = self._dataset_state
        self._dataset_state = None
        if state is not None and self._owner is not None:
            self._owner.load_state_dict(pickle.loads(state))
        return self._count(begin_pass(self._epochs))

    def _count(self, batches: Iterator[object]) -> Iterator[object]:
        for batch in batches:
            self.consumed += 1
            self.batch_samples = self._sizes.take()
            yield batch

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    @property
    def batches_per_epoch(self) -> int | None:
        """Return the batches of the current epoch, which another one may not have."""
        noted: int | None = (self._order.state or {}).get("batches")
        return length(self.loader) if noted is None else noted

    @property
    def is_at_end(self) -> bool:
        batches = self.batches_per_epoch
        return batches is not None and self.consumed >= batches

    def _warn(self) -> None:
        for text in hidden_parts(self.dataset, self.loader):
            self.logger.warning("The data loader: %s", text)
        if self.loader.num_workers:
            for name in names_of_states(self.dataset, self.loader.collate_fn):
                self.logger.warning("The data loader has workers: %s", in_workers(name))
        self._has_hidden_state = has_hidden_state(self.loader)
        if self._has_hidden_state:
            self.logger.warning(
                "The order of %s depends on something that a checkpoint does not have, so a resume"
                " continues with other samples; give it state_dict and load_state_dict, or keep"
                " only numbers and random generators.",
                type(self._order.inner).__name__,
            )

    def state_dict(self) -> State:
        state: State = {"consumed": self.consumed, "order": self._order.state}
        state["world_size"] = world_size()
        if self._owner is not None:
            # The copy is not changed by the next batch.
            copied = pickle_state(self.dataset, self._owner.state_dict())
            state["dataset"] = pickle.loads(copied)
        return state

    def add_restored(self, restored: Restored) -> None:
        """Add what `load_state_dict` restores, and what gets the epoch."""
        add_restored(self._owner, restored)
        owners = samplers(self.loader)
        if self._has_hidden_state:
            restored.unsteady.update(map(id, owners.values()))
        restored.epochs.update(map(id, [*epoch_owners(self.dataset), *owners.values()]))
        restored.objects.update(map(id, own_generators(self.loader).values()))
        for path in own_numbers(self.loader):
            prefix, _, name = path.rpartition(".")
            restored.attributes.add((id(owners.get(f"{prefix}.")), name))
        for sampler in stateful_samplers(self.loader).values():
            restored.add_state(sampler, sampler.state_dict())

    def load_state_dict(self, state: State) -> None:
        """Continue at `state`'s position, or at its epoch's start if the loader has changed."""
        if "consumed" not in state or state["order"] is None:
            return
        if state.get("world_size") != world_size():
            self._report_change("world_size", state.get("world_size"), world_size())
            return
        self._order.begin_at(state["order"], state["consumed"])
        if self._owner is not None and "dataset" in state:
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

    def _check_samples(self) -> None:
        before = (self._order.state or {}).get("samples")
        now = length(self.dataset)
        if self._order.position is not None and before != now:
            self._order.position = None
            self._dataset_state = None
            self._report_change("samples", before, now)

    def _report_change(self, name: str, before: object, now: object) -> None:
        self.consumed = 0
        self.logger.warning(
            "The data loader has changed since the checkpoint, from %s=%s to %s: the epoch's order"
            " starts from the beginning.",
            name,
            before,
            now,
        )


class ResumableSampler:
    """View of a loader's sampler or batch sampler, from any position of an epoch.

    `state` has the states of the generators and samplers when the sampler began the current epoch,
    and the number of batches of that epoch, which the next one may not have.
    """

    def __init__(
        self,
        loader: DataLoader[object],
        report_change: Callable[[str, object, object], None] = lambda *_: None,
    ):
        self.inner = inner_order(loader)
        self.loader = loader
        self._report_change = report_change
        self.state: State | None = None
        self.position: int | None = None
        self._initial = own_numbers(loader)

    def begin_at(self, state: State, position: int) -> None:
        self.state = state
        self.position = position

    def __iter__(self) -> Iterator[object]:
        position = self.position
        self.position = None
        rest = None
        if position is not None:
            # The resumed generators have already advanced past these draws.
            rest = call_isolated(lambda: self._from(position))
        if rest is None:
            self.state = self._note_state()
            rest = self._watch(iter(self.inner))
        yield from rest

    def __len__(self) -> int:
        return len(self.inner)

    def _watch(self, order: Iterator[object]) -> Iterator[object]:
        """Note the number of batches, and whether the second one draws from global generators."""
        assert self.state is not None
        first = list(islice(order, 1))
        # A sampler may make its batches when it begins.
        self.state["batches"] = length(self.inner)
        yield from first
        before = global_states()
        second = list(islice(order, 1))
        self.state["is_lazy"] = global_states() != before
        yield from second
        yield from order

    def _from(self, position: int) -> Iterator[object] | None:
        """Return what follows a position, or None if the epoch has another number of batches."""
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
        before = state.get("batches")
        now = length(self.inner)
        if before != now:
            restore_own(self.loader, state)
            self._report_change("batches", before, now)
            return None
        rest = self._watch(chain(first, rest))
        # The sampler draws for the skipped items here, from the generators that are restored.
        next(islice(rest, position, position), None)
        return rest

    def _note_state(self) -> State:
        state = own_state(self.loader)
        # A sampler may count its epochs. Unchanged numbers may come from a configuration.
        numbers = {key: n for key, n in state["numbers"].items() if self._initial.get(key) != n}
        samples = length(getattr(self.loader, "dataset", None))
        return {
            "global": host_tree(host_state()),
            **state,
            "numbers": numbers,
            "samples": samples,
        }


def global_states() -> list[object]:
    """Return the states of the CPU's global generators, comparable by `==`."""
    of_python, of_numpy, of_torch = host_state()
    return [of_python, [np.asarray(part).tolist() for part in of_numpy], of_torch.tolist()]


def resumable(loader: Any, logger: logging.Logger) -> Any:
    """Return the loader, or a wrapper that gives the same batches and has a `state_dict`."""
    return PlainLoader(loader, logger) if is_plain(loader) else loader


def is_plain(loader: object) -> bool:
    """Return whether this is a torch DataLoader of a map-style dataset in its sampler's order."""
    return why_not_exact(loader) is None


def iterates_as_torch(loader: DataLoader[object]) -> bool:
    """Return whether iterating over a DataLoader, or its subclass, is torch's own code."""
    return type(loader).__iter__ is DataLoader.__iter__ and not hasattr(loader, "state_dict")


def inner_order(loader: DataLoader[object]) -> Any:
    """Return what yields a loader's lists of indices, or its indices if it makes no batches."""
    if loader.batch_sampler is None:
        return loader.sampler
    return loader.batch_sampler


def why_not_exact(loader: object) -> str | None:
    """Explain why the position of a loader is not known, for a message, or return None."""
    if isinstance(loader, DataLoader):
        if isinstance(loader.dataset, IterableDataset):
            return "its dataset is iterable"
        if not getattr(loader, "in_order", True):
            return "in_order=False lets workers decide on the order"
        if iterates_as_torch(loader):
            return None
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
        persistent_workers=loader.persistent_workers and not epoch_owners(loader.dataset),
    )


def set_epoch(loader: object, epoch: int) -> None:
    """Call `set_epoch` of the loader, its samplers and its datasets, where they have it."""
    of_data = epoch_owners(loader.dataset) if isinstance(loader, DataLoader) else []
    owners = [loader, *of_data, *samplers(loader).values()]
    for owner in {id(owner): owner for owner in owners}.values():
        if has_epochs(owner):
            owner.set_epoch(epoch)


def own_attributes(loader: object) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each attribute of a loader's samplers, and of its generator."""
    yield "generator", getattr(loader, "generator", None)
    for path, sampler in samplers(loader).items():
        for name, value in vars(sampler).items():
            yield f"{path}{name}", value


def own_generators(loader: object) -> dict[str, object]:
    return {path: value for path, value in own_attributes(loader) if is_generator(value)}


def own_numbers(loader: object) -> dict[str, float]:
    return {path: value for path, value in own_attributes(loader) if is_number(value)}


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
        logger.debug("The order of a copy of the loader cannot be compared", exc_info=True)
        return False


def _differs_after_resume(loader: DataLoader[object]) -> bool:
    straight = _copy_order(loader)
    resumed = _copy_order(loader)
    list(islice(straight, COMPARED_ITEMS))
    expected = list(islice(straight, COMPARED_ITEMS))
    assert straight.state is not None
    if straight.state["is_lazy"]:
        # A lazy order depends on what else draws random numbers.
        return False
    resumed.begin_at(straight.state, 0)
    return pickle.dumps(list(islice(resumed, COMPARED_ITEMS))) != pickle.dumps(expected)


def _copy_order(loader: DataLoader[object]) -> ResumableSampler:
    parts = {name: getattr(loader, name) for name in (*ORDERS, "generator")}
    # The copy and the loader share the dataset.
    copies: Any = SimpleNamespace(**deepcopy(parts, {id(loader.dataset): loader.dataset}))
    return ResumableSampler(copies)


def own_state(loader: object) -> State:
    """Copy what a loader and its samplers keep: generators, numbers, and states of samplers."""
    return {
        "own": {name: get_generator_state(value) for name, value in own_generators(loader).items()},
        "numbers": own_numbers(loader),
        "samplers": {
            path: deepcopy(sampler.state_dict())
            for path, sampler in stateful_samplers(loader).items()
        },
    }


def restore_own(loader: object, state: State) -> None:
    """Restore what `own_state` has returned, where the loader still has it."""
    owners = samplers(loader)
    generators = own_generators(loader)
    for path, number in state["numbers"].items():
        prefix, _, name = path.rpartition(".")
        if f"{prefix}." in owners:
            setattr(owners[f"{prefix}."], name, number)
    for name in generators.keys() & state["own"].keys():
        set_generator_state(generators[name], state["own"][name])
    for path in stateful_samplers(loader).keys() & state["samplers"].keys():
        owners[path].load_state_dict(deepcopy(state["samplers"][path]))


@contextmanager
def keep_loader_state(loader: object) -> Iterator[None]:
    """Restore the state of a loader, its samplers and its dataset at the end of the context."""
    dataset = getattr(loader, "dataset", None)
    state = own_state(loader)
    owner = None
    if not is_stream(dataset):
        owner = state_owner(dataset, getattr(loader, "collate_fn", None))
    with kept(owner):
        try:
            yield
        finally:
            restore_own(loader, state)
