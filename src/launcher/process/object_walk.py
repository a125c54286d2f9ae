"""Walk through the attributes of objects of any author, without calling their code.

Attributes are read from `__dict__` and slots, so no property and no `__getattr__` is called, and
nothing is copied. The walk stops at classes, modules, locks, files and loggers. Objects of the
standard library, of torch and of Launcher have no state that says something; those that hold
objects of a user are walked through.
"""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import FunctionType, MemberDescriptorType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from launcher.process.rng import is_generator

ARRAYS = (torch.Tensor, np.ndarray)
PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
CONTAINERS = (dict, list, tuple, deque, set, frozenset)
LEAVES = (*PLAIN, *ARRAYS, *CONTAINERS)
MAX_ELEMENTS = 1_000
"""Elements of a long container that are looked at, half of them at each end."""
HOLDERS = (nn.Module, Dataset, Sampler, DataLoader, Optimizer, LRScheduler)
"""Classes of torch, and of Launcher, in whose attributes an object of a user may be."""
BAGS = (SimpleNamespace, Namespace, UserDict, UserList, ChainMap)
"""Classes of the standard library whose attributes are a user's."""
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
OWNED_BY_TORCH: dict[type, set[str]] = {
    nn.Module: set(vars(nn.Module())),
    # A schedule adds `_opt_called`, and replaces `step`.
    Optimizer: {"defaults", "state", "param_groups", "_opt_called", "step"},
    DataLoader: {"_iterator"},
}
"""Attributes of the base classes, which the owner's `state_dict` has, or which need no storing."""
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Place(NamedTuple):
    path: str
    value: Any
    owners: tuple[int, ...] = ()
    """The ids of the objects on the path, the nearest last."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def reach(
    roots: Mapping[str, object], parts: Callable[[Any], Iterable[tuple[object, Any]]]
) -> Iterator[Place]:
    """Yield objects and what `parts` names in them, each once, the shortest path first."""
    seen: set[int] = set()
    waiting = deque(Place(path, root) for path, root in roots.items())
    while waiting:
        place = waiting.popleft()
        path, value, owners = place
        # Small numbers and texts are shared.
        if not isinstance(value, (*PLAIN, *ARRAYS)):
            if id(value) in seen:
                continue
            seen.add(id(value))
        yield place
        owners = (*owners, id(value))
        for name, part in parts(value):
            waiting.append(Place(path if name == "" else f"{path}.{name}", part, owners))


def is_leaf(value: object) -> bool:
    """Return whether a value is plain, an array, a generator, an iterator or a container."""
    return isinstance(value, LEAVES) or is_generator(value) or is_iterator(value)


def parts_of(value: Any) -> Iterator[tuple[object, Any]]:
    """Yield what an object holds, with its name. The name of what it stands for is empty."""
    if isinstance(value, CONTAINERS):
        yield from _items(value)
    elif is_leaf(value) or _is_closed(value):
        return
    if isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from enumerate(value.args)
        yield from value.keywords.items()
    elif isinstance(value, nn.Module):
        for kind in ("_parameters", "_buffers", "_modules"):
            yield from list(vars(value)[kind].items())
        for kind in MODULE_HOOKS:
            for number, item in enumerate(list(vars(value).get(kind, {}).values())):
                yield f"{kind}.{number}", item
    is_holder = _package(value) in OPEN
    for name, item in attributes(value).items():
        # `fully_shard` gives modules attributes with random names that begin with "__".
        is_of_torch = isinstance(value, nn.Module) and name.startswith("__")
        # A holder has plain values of its own, and objects of its user.
        if not (is_of_torch or (is_holder and isinstance(item, PLAIN))):
            yield name, item


def attributes(owner: object) -> dict[str, Any]:
    """Return the attributes in `__dict__` and in slots, without those that are no state."""
    try:
        named = dict(object.__getattribute__(owner, "__dict__"))
    except (AttributeError, TypeError):
        named = {}
    cls: Any = type(owner)
    slots, silent = _declared(cls)
    for name, member in slots.items():
        # A slot may be empty.
        with suppress(AttributeError):
            named[name] = member.__get__(owner)
    return {name: value for name, value in named.items() if name not in silent}


@functools.lru_cache(maxsize=4_096)
def _declared(cls: type) -> tuple[dict[str, MemberDescriptorType], set[str]]:
    """Return the slots of a class, and the names in `not_state` or of torch's base classes."""
    slots: dict[str, MemberDescriptorType] = {}
    silent = {name for base in OWNED_BY_TORCH.keys() & cls.__mro__ for name in OWNED_BY_TORCH[base]}
    for base in cls.__mro__:
        names = vars(base).get("not_state", ())
        silent.update([names] if isinstance(names, str) else names)
        members = vars(base).items() if "__slots__" in vars(base) else ()
        slots |= {name: item for name, item in members if isinstance(item, MemberDescriptorType)}
    return slots, silent


def _items(container: Any) -> Iterator[tuple[object, Any]]:
    """Yield the elements that have a path of their own."""
    if is_named(container):
        # A copy: a thread of the user may change a container meanwhile.
        yield from list(dict.items(container))
        return
    # Arrays in a list belong to the list, and what a long one contains are rows of data.
    own: tuple[type, ...] = (*PLAIN, *ARRAYS)
    if len(container) > MAX_ELEMENTS:
        own = (*own, *CONTAINERS)
    for number, item in enumerate(ends(container)):
        name, value = item if isinstance(container, dict) else (number, item)
        if not isinstance(value, own):
            yield name if isinstance(name, str | int) else number, value


def is_named(container: object) -> bool:
    """Return whether a container is a dict of few texts, whose values are like attributes."""
    if not isinstance(container, dict) or len(container) > MAX_ELEMENTS:
        return False
    return all(isinstance(key, str) for key in list(dict.keys(container)))


def ends(container: Any) -> list[Any]:
    """Return the elements, of a dict its pairs; of a long container the first and the last ones."""
    items = dict.items(container) if isinstance(container, dict) else container
    if len(container) <= MAX_ELEMENTS or isinstance(container, set | frozenset):
        return list(islice(items, MAX_ELEMENTS))
    half = MAX_ELEMENTS // 2
    return [*islice(items, half), *islice(reversed(items), half)]


def is_iterator(value: object) -> bool:
    """Return whether a value is an iterator of Python's, whose place can be read."""
    cls = type(value)
    return cls.__module__ in ("builtins", "itertools") and hasattr(cls, "__next__")


def _is_closed(value: object) -> bool:
    """Return whether the walk stops at an object."""
    if isinstance(value, MethodType | FunctionType | functools.partial):
        return False
    package = _package(value)
    is_holder = (isinstance(value, HOLDERS) and package in OPEN) or isinstance(value, BAGS)
    is_library = package in HARMLESS or package in sys.stdlib_module_names
    return isinstance(value, type) or (is_library and not is_holder)


def _package(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def is_of_launcher(value: object) -> bool:
    return _package(value) == "launcher"
