"""Compare what the attributes of objects are at several times, and what a resume would lose of it.

A generator, a counter or an iterator that has changed is lost. Any other value is lost if it has
changed twice: what changes once is a cache, or a file that was opened late.
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
import operator
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from launcher.process.object_walk import (
    ARRAYS,
    CONTAINERS,
    MAX_ELEMENTS,
    PLAIN,
    Place,
    attributes,
    ends,
    is_iterator,
    is_leaf,
    is_named,
    parts_of,
    reach,
)
from launcher.process.rng import (
    Seeding,
    get_generator_state,
    has_only_drawn,
    is_generator,
    seeding,
)

logger = logging.getLogger(__name__)
Clock = Callable[[], float]
Times = dict[Clock, float]
"""Readings of clocks."""
CLOCKS: tuple[Clock, ...] = (time.time, time.monotonic, time.perf_counter)
TENSORS = (torch.Tensor, torch.nn.Parameter)
MAX_STATE = 8_192
"""Elements of a value that are compared with a state; a generator of torch has 5,056."""
MAX_LOOKS = 3
MAX_OBJECTS = 50_000
MAX_SECONDS = 0.05
"""CPU seconds of a look: the load of the machine does not decide what is seen."""


class Mark(NamedTuple):
    """A cheap description of a value: equal for equal values of one process."""

    content: object
    text: str | None = None
    """The value, if it is a number."""
    is_counter: bool = False
    """It is a generator, a count or an iterator, which changes as training advances."""
    seeding: Seeding | None = None


class Same:
    """Equal to another one if both are of one object, which still exists."""

    def __init__(self, value: Any):
        self._reference = weakref.ref(value)

    def __eq__(self, other: object) -> bool:
        value = self._reference()
        return isinstance(other, Same) and value is not None and value is other._reference()

    def __hash__(self) -> int:
        return id(self._reference)


def mark(value: Any, since: Times, restored: Restored) -> Mark | None:
    """Describe a value, or return None for a time and for what is part of a graph.

    A later step can hardly use a tensor with a graph.

    Args:
        value: the value of a leaf of a walk.
        since: earlier readings. A number between such a reading and the current one is a time.
        restored: knows the tensors in a container that a checkpoint has.
    """
    if is_generator(value):
        return Mark(plain_values(value), is_counter=True, seeding=seeding(value))
    if isinstance(value, PLAIN):
        is_count = isinstance(value, int | np.integer) and not isinstance(value, bool)
        is_number = is_count or isinstance(value, float | np.floating)
        if is_number and _is_time(value, since):
            return None
        return Mark(_plain(value), str(value) if is_number else None, is_count)
    if isinstance(value, CONTAINERS):
        return _mark_container(value, restored)
    if isinstance(value, ARRAYS):
        return None if _has_graph(value) else Mark(_array(value))
    return Mark(iterator_parts(value), is_counter=True)


def _is_time(value: Any, since: Times) -> bool:
    # A number of nanoseconds is an integer.
    seconds = value / 1e9 if isinstance(value, int) else value
    return any(start <= seconds <= clock() for clock, start in since.items())


def _has_graph(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _plain(value: Any) -> object:
    # A text may be long.
    return type(value), hash(value) if isinstance(value, str | bytes) else repr(value)


def _array(value: Any) -> object:
    """Describe a small array by its elements, a large one by its identity and version."""
    shape = (str(value.dtype), tuple(value.shape))
    is_tensor = isinstance(value, torch.Tensor)
    if math.prod(value.shape) <= MAX_ELEMENTS and (not is_tensor or _is_readable(value)):
        return *shape, *plain_values(value)
    if is_tensor:
        return *shape, None if value.is_inference() else value._version, Same(value)
    # Reading a mapped file may take long.
    is_mapped = isinstance(value, np.memmap) or isinstance(value.base, np.memmap)
    if is_mapped or value.dtype == object:
        return Same(value)
    # A view: an array that is not contiguous would be copied by `reshape`.
    return *shape, value.flat[:: value.size // MAX_ELEMENTS].tobytes()


def _is_readable(tensor: torch.Tensor) -> bool:
    return type(tensor) in TENSORS and tensor.layout is torch.strided and not tensor.is_meta


def _mark_container(value: Any, restored: Restored) -> Mark | None:
    def describe(element: object) -> object:
        """Describe an element. Objects have leaves of their own."""
        if isinstance(element, PLAIN):
            return _plain(element)
        if isinstance(element, torch.Tensor) and restored.has_tensor(element):
            return "stored"
        if isinstance(element, ARRAYS):
            return _array(element)
        return type(element).__qualname__

    elements = ends(value)
    if is_named(value):
        elements = [key for key, _ in elements]
    elif isinstance(value, dict):
        elements = [part for pair in elements for part in pair]
    if any(map(_has_graph, elements)):
        return None
    marks = map(describe, elements)
    is_set = isinstance(value, set | frozenset)
    return Mark((len(value), frozenset(marks) if is_set else tuple(marks)))


def iterator_parts(value: Any) -> object:
    """Describe an iterator by its own parts, a generator by its variables."""
    if isinstance(value, itertools.count):
        return repr(value)
    parts: list[object] = [type(value).__name__, operator.length_hint(value, -1)]
    for part in gc.get_referents(value):
        if isinstance(part, PLAIN):
            parts.append(_plain(part))
        elif isinstance(part, list | tuple):
            parts.append(len(part))
        elif is_iterator(part) and part is not value:
            parts.append(iterator_parts(part))
    return tuple(parts)


def plain_values(value: Any) -> list[str]:
    """Return the plain values in a value, alike for a copy of it in a state.

    A large array has none.
    """
    if is_generator(value):
        value = get_generator_state(value)
    if isinstance(value, ARRAYS):
        value = value.reshape(-1).tolist() if math.prod(value.shape) <= MAX_STATE else []
    elif isinstance(value, dict):
        value = list(value.items())
    elif isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, CONTAINERS):
        return [text for item in islice(value, MAX_STATE) for text in plain_values(item)]
    return [repr(value) if isinstance(value, PLAIN) else type(value).__name__]


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
    _states: dict[int, tuple[object, set[str]]] = field(default_factory=dict)

    def add_state(self, owner: object, state: object) -> None:
        """Add the state of an object that stores and restores it itself."""
        self._states[id(owner)] = state, set(map(_bare, attributes(owner)))

    def has(self, place: Place) -> bool:
        value = place.value
        owners = place.owners
        if owners and (owners[-1], place.name) in self.attributes:
            return True
        if self.objects.intersection((id(value), *owners)):
            return True
        if isinstance(value, torch.Tensor) and self.has_tensor(value):
            return True
        states = (self._states[owner] for owner in owners if owner in self._states)
        return any(_is_in(place, *state) for state in states)

    def has_tensor(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self.objects or address(tensor) in self.memory


def address(tensor: torch.Tensor) -> int:
    """Return where the numbers of a tensor, or of this rank's part of it, are in memory."""
    with torch.no_grad():
        part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if _is_readable(part) and part.numel():
        return part.untyped_storage().data_ptr()
    return 0


def _bare(name: object) -> str:
    return str(name).strip("_")


def _is_in(place: Place, state: object, names: set[str]) -> bool:
    """Return whether a state has an entry of this name, or this value under another name.

    An entry that has the name of another attribute is of that one.
    """
    name = _bare(place.name)
    is_plain = isinstance(place.value, PLAIN)
    values = plain_values(place.value)
    others = names - set(map(_bare, place.path.split(".")))

    def parts(part: Any) -> list[tuple[object, Any]]:
        if isinstance(part, Mapping):
            return [(key, item) for key, item in part.items() if _bare(key) not in others]
        items = enumerate(part[:MAX_ELEMENTS] if isinstance(part, list | tuple) else ())
        return [(number, item) for number, item in items if not isinstance(item, PLAIN)]

    for _, part, _ in islice(reach({"": state}, parts), MAX_ELEMENTS):
        if isinstance(part, Mapping) and name in map(_bare, part):
            return True
        if values and isinstance(part, PLAIN) == is_plain and plain_values(part) == values:
            return True
    return False


@dataclass
class Looks:
    """Compares what the looks at the same objects have seen.

    Args:
        clock: gives the seconds that bound a look.
    """

    clock: Clock = time.thread_time
    is_cut: bool = False
    """True if there was more to see."""
    lost: dict[str, str] = field(default_factory=dict)
    """Changes that a resume would lose, as texts, by path."""
    changed: set[str] = field(default_factory=set)
    """Paths of changes that were seen once."""
    count: int = 0
    _before: dict[str, Mark] = field(default_factory=dict)
    _epoch: int = 0
    _since: Times = field(default_factory=lambda: {clock: clock() for clock in CLOCKS})

    def look(
        self, roots: Mapping[str, object], restored: Restored, epoch: int = 0
    ) -> dict[str, str]:
        """Look again, and return what a resume would lose and was not reported before."""
        now: dict[str, Mark] = {}
        excused: set[str] = set()
        end = self.clock() + MAX_SECONDS
        # Breadth first: what is cut is the deepest.
        for count, place in enumerate(reach(roots, parts_of), 1):
            if count > MAX_OBJECTS or (count % 64 == 0 and self.clock() > end):
                self.is_cut = True
                break
            described = self._describe(place, restored) if is_leaf(place.value) else None
            if described is None:
                continue
            if restored.unsteady.intersection(place.owners):
                described = described._replace(is_counter=True)
            elif epoch != self._epoch and restored.epochs.intersection(place.owners):
                excused.add(place.path)
            # `set_epoch` does not seed each generator of its owner.
            if place.path in excused and self._has_only_drawn(place.path, described):
                excused.discard(place.path)
            now[place.path] = described
        new = self._compare(now, excused) if self.count else {}
        self._before = now
        self._epoch = epoch
        self.count += 1
        return new

    def _describe(self, place: Place, restored: Restored) -> Mark | None:
        try:
            if restored.has(place):
                return None
            return mark(place.value, self._since, restored)
        # A value of another library may fail in any way, and training must not.
        except Exception as error:
            logger.debug("%s was not looked at: %r", place.path, error)
            self.is_cut = True
            return None

    def _has_only_drawn(self, path: str, now: Mark) -> bool:
        """Return whether a value is a generator that was not seeded since the last look."""
        before = self._before.get(path)
        if before is None or before.seeding is None or now.seeding is None:
            return False
        return has_only_drawn(before.seeding, now.seeding)

    def _compare(self, now: dict[str, Mark], excused: set[str]) -> dict[str, str]:
        new: dict[str, str] = {}
        for path, mine in now.items():
            before = self._before.get(path)
            if path in self.lost or path in excused or (before and before.content == mine.content):
                continue
            # The look before may have ended before this value.
            if before is None and self.is_cut:
                continue
            # A count that was None before is a cache.
            is_counter = before and mine.is_counter and before.content != _plain(None)
            if before and (is_counter or path in self.changed):
                is_number = before.text and mine.text
                new[path] = f"{path} ({before.text} -> {mine.text})" if is_number else path
            else:
                self.changed.add(path)
        self.lost |= new
        self.changed -= new.keys()
        return new
