"""The state and the epochs that datasets, samplers and collate functions of users declare.

A wrapper such as torch's `Subset` declares neither, so the objects inside it are asked.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from launcher.errors import ConfigError
from launcher.process.object_marks import MAX_OBJECTS, Restored
from launcher.process.object_walk import LEAVES, Place, parts_of, reach
from launcher.process.rng import get_generator_state, is_generator, set_generator_state

logger = logging.getLogger("launcher")
State = dict[str, Any]
"""The state of a loader or of a dataset."""
SAMPLES = frozenset(LEAVES)
"""Types that declare nothing. A list of samples may have millions of such objects."""
DATASETS = ("dataset", "datasets")
"""Attributes that have the datasets inside another one."""
SAMPLERS = ("sampler", "batch_sampler", "base_sampler")
Has = Callable[[Any], bool]


def is_stream(dataset: object) -> bool:
    """Return whether an object can be iterated but not indexed, as an `IterableDataset`."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def has_state(dataset: object) -> bool:
    """Return whether a dataset is resumed by its own `state_dict` and `load_state_dict`.

    The state of a shuffled stream of Hugging Face's datasets lacks its buffer. The state of a dict
    of tensors is all of its samples.
    """
    return (
        hasattr(dataset, "state_dict")
        and hasattr(dataset, "load_state_dict")
        and getattr(dataset, "keeps_state", True)
        and not is_hugging_face_stream(dataset)
        and not isinstance(dataset, Mapping)
    )


def has_epochs(owner: object) -> bool:
    return callable(getattr(owner, "set_epoch", None))


def is_hugging_face_stream(dataset: object) -> bool:
    cls = type(dataset)
    return cls.__name__ == "IterableDataset" and cls.__module__.partition(".")[0] == "datasets"


def in_workers(name: str) -> str:
    """Explain that a state is not stored, for a warning."""
    return (
        f"the state of {name} is not in a checkpoint, since each worker has its own; use"
        " num_workers=0."
    )


def pickle_state(dataset: object, state: object) -> bytes:
    """Pickle a state, since the dataset may change what its `state_dict` has returned."""
    try:
        return pickle.dumps(state)
    # An object may fail in any way when it is pickled.
    except Exception as error:
        raise ConfigError(
            f"data.dataset={type(dataset).__name__}: its state_dict() cannot be pickled ({error});"
            " return numbers, texts, tensors, and lists and dicts of them."
        ) from error


# Walking


def outermost(dataset: object, has: Has) -> dict[str, Any]:
    """Return the objects in a dataset that have something, by path; its own path is empty.

    An object that has it is responsible for what is inside it.
    """
    return {path: value for path, value, _ in _walk(dataset, has) if has(value)}


def _walk(dataset: object, has: Has) -> Iterator[Place]:
    """Yield a dataset and those inside it, each once, down to the outermost that have something."""

    def parts(value: object) -> Iterator[tuple[object, Any]]:
        inner = {} if has(value) else attributes(value)
        return _each({name: item for name, item in inner.items() if _is_data(name, item)})

    return reach({"": dataset}, parts)


def _is_data(name: str, value: object) -> bool:
    return name in DATASETS or isinstance(value, Dataset)


def _each(named: Mapping[str, Any]) -> Iterator[tuple[object, Any]]:
    """Yield the items of lists and dicts in place of them, without samples."""
    for name, value in named.items():
        items: Iterable[tuple[object, object]]
        if isinstance(value, list | tuple):
            items = enumerate(value)
        elif isinstance(value, dict):
            items = value.items()
        else:
            yield name, value
            continue
        yield from ((f"{name}.{key}", item) for key, item in items if type(item) not in SAMPLES)


def attributes(owner: object) -> dict[str, Any]:
    return dict(vars(owner)) if hasattr(owner, "__dict__") else {}


def epoch_owners(dataset: object) -> list[Any]:
    """Return the outermost objects of a dataset that have `set_epoch`."""
    return list(outermost(dataset, has_epochs).values())


def samplers(loader: object) -> dict[str, Any]:
    """List a loader's sampler and batch sampler, and the samplers inside them, by path."""

    def parts(value: object) -> Iterator[tuple[str, Any]]:
        for name, item in attributes(value).items():
            if isinstance(item, Sampler) or name in SAMPLERS:
                yield name, item

    places = reach({name: getattr(loader, name, None) for name in SAMPLERS}, parts)
    return {f"{path}.": value for path, value, _ in places if hasattr(value, "__dict__")}


def hidden_parts(dataset: object, loader: object = None) -> list[str]:
    """Describe what has a state or `set_epoch`, and is held where nothing looks for it."""
    methods: dict[str, Has] = {"set_epoch": has_epochs, "state_dict": has_state}
    of_loader = list(samplers(loader).values())
    texts = []
    for method, has in methods.items():
        walked = [place.value for place in _walk(dataset, has)]
        known = {id(value) for value in [*walked, *of_loader]}
        owners = [v for v in walked if not (has(v) or is_hugging_face_stream(v))]
        for owner in owners + of_loader:
            for name, value in attributes(owner).items():
                is_part = not isinstance(value, torch.nn.Module | type | ModuleType)
                if id(value) not in known and is_part and has(value):
                    holder = type(owner).__name__
                    texts.append(
                        f"{holder}.{name} ({type(value).__name__}) has {method}, which nothing"
                        f" calls; name the attribute of {holder} dataset or sampler, or give"
                        f" {holder} the method."
                    )
    return texts


# States


def is_number(value: object) -> bool:
    return type(value) in (int, float)


class CollateState:
    """The state of a collate function: its own, or else its random generators and numbers.

    They are its attributes, or attributes of the object whose method it is, or arguments of a
    `functools.partial`. A number counts from when it has changed.
    """

    def __init__(self, collate: Any):
        self._function = collate.func if isinstance(collate, partial) else collate
        self._owner = getattr(self._function, "__self__", self._function)
        arguments: dict[str, Any] = {}
        if isinstance(collate, partial):
            arguments = {str(number): value for number, value in enumerate(collate.args)}
            arguments |= collate.keywords
        self._arguments = arguments
        self._initial = self._numbers()

    @property
    def draws(self) -> bool:
        """Return whether it has a state of its own, or a random generator."""
        return bool(self._parts() or self._generators())

    @property
    def may_change(self) -> bool:
        return self.draws or bool(self._initial)

    @property
    def name(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)

    def state_dict(self) -> State:
        numbers = self._numbers()
        return {
            "parts": {path: part.state_dict() for path, part in self._parts().items()},
            "generators": {
                path: get_generator_state(value) for path, value in self._generators().items()
            },
            "numbers": {key: n for key, n in numbers.items() if self._initial.get(key) != n},
        }

    def load_state_dict(self, state: State) -> None:
        parts = self._parts()
        generators = self._generators()
        for path in parts.keys() & state["parts"].keys():
            parts[path].load_state_dict(state["parts"][path])
        for path in generators.keys() & state["generators"].keys():
            set_generator_state(generators[path], state["generators"][path])
        for name, number in {**self._initial, **state["numbers"]}.items():
            if getattr(self._owner, name, None) != number:
                setattr(self._owner, name, number)
        missing = sorted(state["generators"].keys() - generators.keys())
        if missing:
            logger.warning(
                "The collate function %s has no generator %s at the start, so the state of the"
                " checkpoint is not used; make it in the constructor.",
                self.name,
                missing[0],
            )

    def add_restored(self, restored: Restored) -> None:
        for part in self._parts().values():
            restored.add_state(part, part.state_dict())
        restored.objects.update(map(id, self._generators().values()))
        restored.attributes.update((id(self._owner), name) for name in self._numbers())

    def _values(self) -> dict[str, Any]:
        """Return what may have a state, by name."""
        if isinstance(self._owner, type | ModuleType | torch.nn.Module):
            return self._arguments
        if has_state(self._owner):
            return {**self._arguments, "": self._owner}
        return {**self._arguments, **attributes(self._owner)}

    def _parts(self) -> dict[str, Any]:
        values = self._values().items()
        return {n: v for n, v in values if has_state(v) and not isinstance(v, torch.nn.Module)}

    def _generators(self) -> dict[str, Any]:
        return {name: v for name, v in self._values().items() if is_generator(v)}

    def _numbers(self) -> dict[str, float]:
        values = {} if self._parts().get("") else self._values()
        own = attributes(self._owner)
        return {name: v for name, v in values.items() if is_number(v) and name in own}


def state_owner(dataset: object, collate: Any = None) -> Any | None:
    """Return what has the `state_dict` of a map-style dataset and its collate function, or None."""
    parts = outermost(dataset, lambda part: has_state(part) and not is_stream(part))
    of_collate = CollateState(collate)
    if of_collate.may_change or parts.keys() - {""}:
        return DataState(parts, of_collate)
    return dataset if parts else None


def add_restored(owner: Any | None, restored: Restored) -> None:
    """Add what a `state_owner` restores."""
    if isinstance(owner, DataState):
        owner.add_restored(restored)
    elif owner is not None:
        restored.add_state(owner, owner.state_dict())


def names_of_states(dataset: object, collate: Any) -> list[str]:
    """Name what has a state in a map-style dataset and its collate function, for messages."""
    parts = outermost(dataset, has_state).values()
    names = [f"the dataset ({type(part).__name__}.state_dict)" for part in parts]
    of_collate = CollateState(collate)
    if of_collate.draws:
        return [*names, f"collate_fn ({of_collate.name})"]
    return names


@contextmanager
def kept(owner: Any | None) -> Iterator[None]:
    """Restore the state of an object, if there is one, at the end of the context."""
    state = None if owner is None else deepcopy(owner.state_dict())
    try:
        yield
    finally:
        if owner is not None:
            owner.load_state_dict(state)


class Rewound:
    """Sets the random generators in a dataset to where they were when this was made.

    At the end of the context they are where they were at its start, since training may use them.
    """

    def __init__(self, dataset: object):
        places = islice(reach({"": dataset}, parts_of), MAX_OBJECTS)
        self._generators = [place.value for place in places if is_generator(place.value)]
        self._first = self._states()
        self._others: list[object] = []

    def _states(self) -> list[object]:
        return [deepcopy(get_generator_state(value)) for value in self._generators]

    def _set(self, states: Iterable[object]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            set_generator_state(generator, deepcopy(state))

    def __enter__(self) -> None:
        self._others = self._states()
        self._set(self._first)

    def __exit__(self, *exc: object) -> None:
        self._set(self._others)


class DataState:
    """The states of the datasets inside a map-style one, and of its collate function."""

    def __init__(self, parts: Mapping[str, Any], collate: CollateState):
        self.parts = dict(parts)
        self.collate = collate

    def add_restored(self, restored: Restored) -> None:
        for part in self.parts.values():
            restored.add_state(part, part.state_dict())
        self.collate.add_restored(restored)

    def state_dict(self) -> State:
        parts = {path: part.state_dict() for path, part in self.parts.items()}
        return {"parts": parts, "collate": self.collate.state_dict()}

    def load_state_dict(self, state: State) -> None:
        for path, part in self.parts.items():
            if path in state["parts"]:
                part.load_state_dict(state["parts"][path])
        self.collate.load_state_dict(state["collate"])
