"""Walk through the attributes of objects of any author, without calling their code.

Attributes are read from `__dict__` and slots, so no property and no `__getattr__` is called, and
nothing is copied. The walk stops at classes, modules, locks, files and loggers. Objects of the
standard library, of torch and of Launcher have no state that says something; those that hold
objects of a user are walked through.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import FunctionType, GeneratorType, MemberDescriptorType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
ARRAYS = (torch.Tensor, np.ndarray)
PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
CONTAINERS = (dict, list, tuple, deque, set, frozenset)
MAX_ELEMENTS = 1_000
"""Elements of a long container that are looked at, half of them at each end."""
MAX_OBJECTS = 50_000
MAX_SECONDS = 0.05
"""CPU seconds of a walk: the load of the machine does not decide what is seen."""
HOLDERS = (nn.Module, Dataset, Sampler, DataLoader, Optimizer, LRScheduler)
"""Classes of torch, and of Launcher, in whose attributes an object of a user may be."""
HARMLESS = {
    "hydra": "its nodes are the configuration",
    "omegaconf": "its nodes are the configuration",
    "launcher": "stores its own state",
    "torch": "counters and caches; what it has of the training is stored",
    "numpy": "types and functions; generators and arrays are looked at",
    "pandas": "caches of its blocks",
    "pyarrow": "tables, which are not changed in place",
    "datasets": "tables, which are not changed in place; streams have a state_dict",
    "h5py": "open files",
    "PIL": "images, loaded when they are read",
    "tqdm": "progress bars",
    "matplotlib": "figures",
    "wandb": "a connection to its service",
    "mlflow": "a connection to its service",
    "tensorboard": "open files",
    "tokenizers": "caches",
    "torchmetrics": "sums of what is logged, until the next reset",
}
"""Packages whose own objects are not walked through, and why."""
OPEN = {"launcher", "torch"}
"""Packages of which some classes hold objects of a user, see `HOLDERS`."""
OWNED_BY_TORCH = {
    nn.Module: frozenset(vars(nn.Module())),
    # A schedule adds `_opt_called`, and replaces `step`.
    Optimizer: frozenset({"defaults", "state", "param_groups", "_opt_called", "step"}),
    DataLoader: frozenset({"_iterator"}),
}
"""Attributes of the base classes, which the owner's `state_dict` has, or which need no storing."""
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Clock = Callable[[], float]


@dataclass(frozen=True)
class Leaf:
    """A value at a path: a plain value, an array, a generator, an iterator or a container."""

    path: str
    value: Any
    owners: tuple[int, ...]
    """The ids of the objects on the path, the nearest last."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass
class Walk:
    """One walk, breadth first, so that what is cut is the deepest."""

    clock: Clock = time.thread_time
    max_objects: int = MAX_OBJECTS
    max_seconds: float = MAX_SECONDS
    is_cut: bool = False
    """True if it has ended before it had seen everything."""
    _waiting: deque[tuple[str, Any, tuple[int, ...]]] = field(default_factory=deque)
    _seen: set[int] = field(default_factory=set)

    def leaves(self, roots: Mapping[str, object]) -> Iterator[Leaf]:
        end, count = self.clock() + self.max_seconds, 0
        roots_by_id = {id(root) for root in roots.values()}
        self._waiting.extend((path, root, ()) for path, root in roots.items())
        while self._waiting:
            path, value, owners = self._waiting.popleft()
            count += 1
            if count > self.max_objects or (count % 64 == 0 and self.clock() > end):
                self.is_cut = True
                return
            is_root = not owners and id(value) in roots_by_id
            try:
                yield from self._visit(path, value, owners, is_root)
            # A thread of the user may change a container meanwhile.
            except RuntimeError:
                self.is_cut = True

    def _visit(
        self, path: str, value: Any, owners: tuple[int, ...], is_root: bool
    ) -> Iterator[Leaf]:
        is_leaf = isinstance(value, (*PLAIN, *ARRAYS))
        if not is_leaf and id(value) in self._seen:
            return
        self._seen.add(id(value))
        if is_leaf or isinstance(value, GENERATORS) or is_iterator(value):
            yield Leaf(path, value, owners)
        elif isinstance(value, CONTAINERS):
            yield Leaf(path, value, owners)
            for name, item in _items(value):
                self._add(f"{path}.{name}", item, owners)
            if not _is_library(value):
                self._enter(path, value, (*owners, id(value)))
        elif is_root or not _is_closed(value):
            self._enter(path, value, (*owners, id(value)))

    def _enter(self, path: str, value: Any, owners: tuple[int, ...]) -> None:
        if isinstance(value, MethodType):
            self._add(path, value.__self__, owners)
        elif isinstance(value, functools.partial):
            self._add(path, value.func, owners)
            for number, argument in enumerate(value.args):
                self._add(f"{path}.{number}", argument, owners)
            for name, argument in value.keywords.items():
                self._add(f"{path}.{name}", argument, owners)
        elif isinstance(value, nn.Module):
            self._enter_module(path, value, owners)
        for name, item in attributes(value).items():
            if not _is_own_name(value, name):
                continue
            # A holder of a library has plain values of its own, and its user's objects.
            if not (_is_library(value) and isinstance(item, PLAIN)):
                self._add(f"{path}.{name}", item, owners)

    def _enter_module(self, path: str, module: nn.Module, owners: tuple[int, ...]) -> None:
        names = vars(module)
        for kind in ("_parameters", "_buffers", "_modules"):
            for name, item in names[kind].items():
                self._add(f"{path}.{name}", item, owners)
        for kind in MODULE_HOOKS:
            for number, item in enumerate(names.get(kind, {}).values()):
                self._add(f"{path}.{kind}.{number}", item, owners)

    def _add(self, path: str, value: Any, owners: tuple[int, ...]) -> None:
        self._waiting.append((path, value, owners))


def attributes(owner: object) -> dict[str, Any]:
    """Return the attributes in `__dict__` and in slots, without those in `not_state`."""
    try:
        named = dict(object.__getattribute__(owner, "__dict__"))
    except (AttributeError, TypeError):
        named = {}
    silent: set[str] = set()
    for cls in type.__dict__["__mro__"].__get__(type(owner)):
        names = vars(cls).get("not_state", ())
        silent.update([names] if isinstance(names, str) else names)
        if "__slots__" not in vars(cls):
            continue
        for name, member in vars(cls).items():
            if isinstance(member, MemberDescriptorType):
                try:
                    named[name] = member.__get__(owner)
                # The slot is empty.
                except AttributeError:
                    continue
    return {name: value for name, value in named.items() if name not in silent}


def _items(container: Any) -> Iterator[tuple[object, Any]]:
    """Yield the elements that have a path of their own: all of a dict by name, else objects."""
    if isinstance(container, dict):
        for key, value in ends(container, dict.items):
            if has_own_leaf(container, key, value):
                yield key if isinstance(key, str | int) else type(key).__name__, value
        return
    # Arrays in a list belong to the list, and what a long one contains are rows of data.
    own: tuple[type, ...] = (*PLAIN, *ARRAYS)
    if len(container) > MAX_ELEMENTS:
        own = (*own, *CONTAINERS)
    for number, value in enumerate(ends(container, iter)):
        if not isinstance(value, own):
            yield number, value


def has_own_leaf(container: dict[Any, Any], key: object, value: object) -> bool:
    """Return whether a value in a dict has a path of its own, and is not part of the dict's."""
    is_named = isinstance(key, str) and len(container) <= MAX_ELEMENTS
    return is_named or not isinstance(value, PLAIN)


def ends(container: Any, items: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield the elements, or of a long container the first and the last ones."""
    if len(container) <= MAX_ELEMENTS or isinstance(container, set | frozenset):
        yield from list(islice(items(container), MAX_ELEMENTS))
        return
    half = MAX_ELEMENTS // 2
    if isinstance(container, dict):
        first, last = dict.__iter__(container), dict.__reversed__(container)
        keys = [next(order) for order in (first, last) for _ in range(half)]
        yield from ((key, dict.__getitem__(container, key)) for key in keys)
        return
    yield from (container[number] for number in (*range(half), *range(-half, 0)))


def is_iterator(value: object) -> bool:
    """Return whether a value is an iterator of Python's, whose place can be read."""
    cls = type(value)
    if isinstance(value, GeneratorType) or cls.__module__ == "itertools":
        return True
    return cls.__module__ == "builtins" and hasattr(cls, "__next__")


def _is_closed(value: object) -> bool:
    """Return whether the walk stops at an object."""
    if isinstance(value, type):
        return True
    if isinstance(value, MethodType | FunctionType | functools.partial):
        return False
    is_holder = isinstance(value, HOLDERS) and _package(value) in OPEN
    return _is_library(value) and not is_holder


def _package(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def _is_library(value: object) -> bool:
    package = _package(value)
    return package in HARMLESS or package in sys.stdlib_module_names


def _is_own_name(value: object, name: str) -> bool:
    # `fully_shard` gives modules attributes with random names that begin with "__".
    if isinstance(value, nn.Module) and name.startswith("__"):
        return False
    of_torch = (names for base, names in OWNED_BY_TORCH.items() if isinstance(value, base))
    return not any(name in names for names in of_torch)


def is_of_launcher(value: object) -> bool:
    return _package(value) == "launcher"
