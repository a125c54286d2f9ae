"""Compare what the attributes of objects are at several times, and what a resume would lose of it.

A generator, a counter or an iterator that has changed is lost. Any other value is lost if it has
changed twice: what changes once is a cache, or a file that was opened late.
"""

from __future__ import annotations

import gc
import itertools
import logging
import operator
import random
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from launcher.process.object_walk import (
    ARRAYS,
    CONTAINERS,
    GENERATORS,
    MAX_ELEMENTS,
    PLAIN,
    Leaf,
    Walk,
    attributes,
    ends,
    has_own_leaf,
    is_iterator,
)

logger = logging.getLogger(__name__)
CLOCKS = (time.time, time.monotonic, time.perf_counter)


class Mark(NamedTuple):
    """A cheap description of a value: equal for equal values of one process."""

    content: object
    text: str | None = None
    """The value, if it is a number."""
    is_counter: bool = False
    """It is a generator, a count or an iterator, which changes as training advances."""
    is_output: bool = False
    """It is part of a graph, so that a later step can hardly use it."""


class Same:
    """Equal to another one if both are of one object, which still exists."""

    def __init__(self, value: Any):
        self._reference = weakref.ref(value)

    def __eq__(self, other: object) -> bool:
        value = self._reference()
        return isinstance(other, Same) and value is not None and value is other._reference()

    def __hash__(self) -> int:
        return id(self._reference)


IsStored = Callable[[torch.Tensor], bool]


def mark(
    value: Any,
    since: Mapping[Callable[[], float], float] | None = None,
    is_stored: IsStored = lambda _: False,
) -> Mark | None:
    """Describe a value, or return None for one that says nothing, such as the time.

    Args:
        value: the value of a leaf of a walk.
        since: earlier readings of clocks. A number between such a reading and the current one is a
            time.
        is_stored: whether a tensor in a container is one that a checkpoint has.
    """
    if isinstance(value, GENERATORS):
        return Mark(generator_state(value), is_counter=True)
    if isinstance(value, PLAIN):
        if since is not None and _is_time(value, since):
            return None
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        is_count = isinstance(value, int | np.integer) and not isinstance(value, bool)
        return Mark(_plain(value), str(value) if is_number else None, is_counter=is_count)
    if isinstance(value, torch.Tensor):
        return Mark(_array(value), is_output=value.grad_fn is not None)
    if isinstance(value, np.ndarray):
        return Mark(_array(value))
    if isinstance(value, CONTAINERS):
        return Mark(_container(value, is_stored), is_output=_has_outputs(value))
    return Mark(_iterator(value), is_counter=True)


def generator_state(generator: Any) -> object:
    """Return the state of a random generator, comparable by `==`, or None if it has none."""
    if isinstance(generator, torch.Generator):
        return bytes(generator.get_state().tolist())
    if isinstance(generator, random.Random):
        return None if isinstance(generator, random.SystemRandom) else generator.getstate()
    state = (
        generator.bit_generator.state
        if isinstance(generator, np.random.Generator)
        else generator.get_state(legacy=False)
    )
    return repr(state)


def _is_time(value: object, since: Mapping[Callable[[], float], float]) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # A number of nanoseconds is an integer.
    seconds = value / 1e9 if isinstance(value, int) else value
    return any(before <= seconds <= clock() for clock, before in since.items())


def _plain(value: Any) -> object:
    is_long = isinstance(value, str | bytes) and len(value) > MAX_ELEMENTS
    return (len(value), hash(value)) if is_long else f"{type(value).__name__} {value!r}"


def _array(value: Any) -> object:
    """Describe a small array by its elements, a large one by its identity and version."""
    shape = (str(value.dtype), tuple(value.shape))
    if isinstance(value, np.ndarray):
        is_read = value.size <= MAX_ELEMENTS and value.dtype != object
        return (*shape, value.tobytes()) if is_read else (*shape, _sampled(value))
    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_meta
    if is_plain and value.numel() <= MAX_ELEMENTS and value.layout is torch.strided:
        return (*shape, repr(value.detach().tolist()))
    version = None if value.is_inference() else value._version
    return (*shape, version, Same(value))


def _sampled(value: np.ndarray) -> object:
    # Reading a mapped file may take long.
    is_mapped = isinstance(value, np.memmap) or isinstance(value.base, np.memmap)
    if is_mapped or value.dtype == object:
        return Same(value)
    # A view: an array that is not contiguous would be copied by `reshape`.
    step = max(1, value.size // MAX_ELEMENTS)
    return value.flat[::step].tobytes()


def _container(value: Any, is_stored: IsStored) -> object:
    if isinstance(value, dict):
        items = list(ends(value, dict.items))
        # The others have marks of their own.
        parts = [item for key, item in items if not has_own_leaf(value, key, item)]
        keys = tuple(_element(key, is_stored) for key, _ in items)
        return len(value), keys, tuple(_element(item, is_stored) for item in parts)
    elements = [_element(item, is_stored) for item in ends(value, iter)]
    if isinstance(value, set | frozenset):
        return len(value), frozenset(elements)
    return len(value), tuple(elements)


def _element(value: object, is_stored: IsStored) -> object:
    """Describe an element of a container. Objects in it have leaves of their own."""
    if isinstance(value, PLAIN):
        return _plain(value)
    if isinstance(value, torch.Tensor) and is_stored(value):
        return "stored"
    return _array(value) if isinstance(value, ARRAYS) else type(value).__qualname__


def _has_outputs(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    some = itertools.islice(items, MAX_ELEMENTS)
    return any(isinstance(item, torch.Tensor) and item.grad_fn is not None for item in some)


def _iterator(value: Any) -> object:
    if isinstance(value, itertools.count):
        return repr(value)
    parts: list[object] = [type(value).__name__, operator.length_hint(value, -1)]
    # An iterator's own parts, and the variables of a generator.
    for part in gc.get_referents(value):
        if isinstance(part, PLAIN):
            parts.append(_plain(part))
        elif isinstance(part, list | tuple):
            parts.append(len(part))
        elif is_iterator(part) and part is not value:
            parts.append(_iterator(part))
    return tuple(parts)


@dataclass
class Restored:
    """The parts that a resume restores, as the owners of the state say."""

    attributes: set[tuple[int, str]] = field(default_factory=set)
    """An object's id and the name of its attribute."""
    objects: set[int] = field(default_factory=set)
    """The ids of generators and tensors, and of objects that are restored with all their parts."""
    memory: set[int] = field(default_factory=set)
    """The addresses of stored tensors."""
    epochs: set[int] = field(default_factory=set)
    """The ids of objects that are told the epoch."""
    unsteady: set[int] = field(default_factory=set)
    """The ids of samplers whose order depends on something that is not stored."""
    _states: dict[int, tuple[object, frozenset[str]]] = field(default_factory=dict)

    def add_state(self, owner: object, state: object) -> None:
        """Add the state of an object that stores and restores it itself."""
        self._states[id(owner)] = state, frozenset(map(_bare, attributes(owner)))

    def has(self, leaf: Leaf) -> bool:
        nearest = leaf.owners[-1] if leaf.owners else 0
        if (nearest, leaf.name) in self.attributes or id(leaf.value) in self.objects:
            return True
        if self.objects.intersection(leaf.owners):
            return True
        if isinstance(leaf.value, torch.Tensor) and self.has_tensor(leaf.value):
            return True
        states = [self._states[owner] for owner in leaf.owners if owner in self._states]
        return any(_is_in(leaf, *state) for state in states)

    def has_tensor(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self.objects or address(tensor) in self.memory


def address(tensor: torch.Tensor) -> int:
    """Return where the numbers of a tensor, or of this rank's part of it, are in memory."""
    with torch.no_grad():
        part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    is_readable = type(part) in TENSORS and part.layout is torch.strided and part.numel()
    return part.untyped_storage().data_ptr() if is_readable else 0


TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _bare(name: str) -> str:
    return name.strip("_")


def _is_in(leaf: Leaf, state: object, explained: frozenset[str]) -> bool:
    """Return whether a state has an entry of this name, or this value under another name.

    An entry that has the name of another attribute is of that one.
    """
    name, value = _bare(leaf.name), _value_of(leaf.value)
    is_plain = isinstance(leaf.value, PLAIN)
    explained = explained.difference(map(_bare, leaf.path.split(".")))
    waiting: list[object] = [state]
    for _ in range(MAX_ELEMENTS):
        if not waiting:
            return False
        part = waiting.pop()
        # A plain value has no equal among containers, which take long to describe.
        is_comparable = isinstance(part, PLAIN) or not is_plain
        if value is not None and is_comparable and _value_of(part) == value:
            return True
        if isinstance(part, Mapping):
            names = {_bare(str(key)): item for key, item in part.items()}
            if name in names:
                return True
            waiting.extend(item for key, item in names.items() if key not in explained)
        elif isinstance(part, list | tuple):
            waiting.extend(item for item in part[:MAX_ELEMENTS] if not isinstance(item, PLAIN))
    return False


def _value_of(value: object) -> object:
    """Describe a value and its copy in a state alike, or return None."""
    if isinstance(value, np.random.Generator | np.random.RandomState):
        return generator_state(value)
    if isinstance(value, torch.Generator):
        return _value_of(value.get_state())
    if isinstance(value, random.Random):
        state = generator_state(value)
        return None if state is None else _listed(state)
    if isinstance(value, torch.Tensor):
        is_small = value.numel() <= MAX_STATE
        return _listed(value.detach().reshape(-1).tolist()) if is_small else None
    if isinstance(value, np.ndarray):
        return _listed(value.reshape(-1).tolist()) if value.size <= MAX_STATE else None
    if isinstance(value, dict):
        return repr(value) if len(value) <= MAX_ELEMENTS else None
    if isinstance(value, list | tuple | set | deque):
        return _listed(value)
    return value if isinstance(value, PLAIN) else None


MAX_STATE = 8_192
"""Elements of an array whose values are compared with a state; a generator of torch has 5,056."""


def _listed(value: Any) -> object:
    items = sorted(map(repr, value)) if isinstance(value, set) else map(repr, value)
    return list(itertools.islice(items, MAX_STATE))


class Change(NamedTuple):
    path: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return self.path
        return f"{self.path} ({self.before} -> {self.after})"


Snapshot = dict[str, Mark]


@dataclass
class Looks:
    """Compares what the walks through the same roots have seen.

    Args:
        clock: gives the seconds that bound a walk.
    """

    clock: Callable[[], float] = time.thread_time
    is_cut: bool = False
    lost: dict[str, Change] = field(default_factory=dict)
    """Changes that a resume would lose, by path."""
    changed: dict[str, Change] = field(default_factory=dict)
    """Changes that were seen once, by path."""
    count: int = 0
    _before: Snapshot = field(default_factory=dict)
    _epoch: int = 0
    _since: dict[Callable[[], float], float] = field(default_factory=dict)

    def look(self, roots: Mapping[str, object], restored: Restored, epoch: int = 0) -> list[Change]:
        """Walk again, and return what a resume would lose and was not reported before."""
        if not self.count:
            self._since = {clock: clock() for clock in CLOCKS}
        walk = Walk(clock=self.clock)
        now: Snapshot = {}
        of_epochs: set[str] = set()
        unsteady: set[str] = set()
        for leaf in walk.leaves(roots):
            try:
                is_restored = restored.has(leaf)
                described = mark(leaf.value, self._since, restored.has_tensor)
            # A value of another library may fail in any way, and training must not.
            except Exception as error:
                logger.debug("%s was not looked at: %r", leaf.path, error)
                self.is_cut = True
                continue
            if is_restored:
                continue
            if described is not None:
                now[leaf.path] = described
            if restored.epochs.intersection(leaf.owners):
                of_epochs.add(leaf.path)
            if restored.unsteady.intersection(leaf.owners):
                unsteady.add(leaf.path)
        self.is_cut |= walk.is_cut
        excused = of_epochs - unsteady if epoch != self._epoch else set()
        new = list(self._compare(now, excused, unsteady))
        self._before, self._epoch = now, epoch
        self.count += 1
        return new

    def _compare(self, now: Snapshot, excused: set[str], unsteady: set[str]) -> Iterator[Change]:
        for path, mine in now.items():
            before = self._before.get(path)
            is_new = before is None
            if not self.count or before == mine:
                continue
            change = Change(path, before.text if before else None, mine.text)
            was_there = not is_new and path not in excused
            # A count that was None before is a cache.
            is_counter = mine.is_counter and before is not None and before.is_counter
            is_enough = is_counter or path in unsteady or path in self.changed
            is_lost = was_there and is_enough
            if path in self.lost:
                continue
            if is_lost and not mine.is_output:
                self.lost[path] = change
                self.changed.pop(path, None)
                yield change
            elif path not in excused:
                self.changed[path] = change
