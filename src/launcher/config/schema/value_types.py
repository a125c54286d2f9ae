"""The type of a key or an argument: its description in words, and whether a value fits it."""

import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from launcher.config.messages import show
from launcher.errors import ConfigError


class Part:
    """A type that YAML cannot express, such as a module: a node with `_target_` makes it."""

    def __class_getitem__(cls, _: object) -> type["Part"]:
        return cls


NOUNS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}
LIMITS: dict[type, tuple[str, str, Callable[[Any, Any], bool]]] = {
    Gt: ("gt", "greater than", operator.gt),
    Ge: ("ge", "of at least", operator.ge),
    Lt: ("lt", "less than", operator.lt),
    Le: ("le", "of at most", operator.le),
    MinLen: ("min_length", "with a length of at least", operator.ge),
    MaxLen: ("max_length", "with a length of at most", operator.le),
}
"""The name of a limit, its description, and what it requires."""


def describe(annotation: Any) -> str:
    """Describe a type in words: `int | None` is "a whole number or null"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = {type(mark): getattr(mark, LIMITS[type(mark)][0]) for mark in bounds(annotation)}
        if MinLen in limits and limits[MinLen] == limits.get(MaxLen):
            return describe(arguments[0]).replace("a list", f"a list of {limits[MinLen]}", 1)
        if limits == {MinLen: 1}:
            return f"{describe(arguments[0])} that is not empty"
        if Ge in limits and (Le in limits or Lt in limits):
            top = f"to {limits[Le]}" if Le in limits else f"to below {limits[Lt]}"
            return f"{describe(arguments[0])} from {limits[Ge]} {top}"
        texts = [f"{LIMITS[cls][1]} {limit}" for cls, limit in limits.items()]
        return f"{describe(arguments[0])} {' and '.join(texts)}"
    if origin in (Union, UnionType):
        # A list comes last, since "or null" would be an item's.
        texts = [describe(argument) for argument in arguments]
        return " or ".join(sorted(texts, key=lambda text: text.startswith("a list")))
    if origin is Literal:
        choices = ", ".join(show(value).strip("'") for value in arguments)
        return f"one of {choices}" if len(arguments) > 1 else choices
    cls = origin or annotation
    if cls is list:
        return (
            "a list" if arguments in ((), (Any,)) else f"a list, each item {describe(arguments[0])}"
        )
    if cls is dict:
        has_parts = any(item is Part or get_origin(item) is dict for item in arguments)
        if has_parts:
            return "a mapping of names to parts"
        keys = arguments[0] if arguments else Any
        typed = f", each key {describe(keys)}" if keys not in (Any, str) else ""
        return f"a mapping of keys to values{typed}"
    if cls is Part:
        return "a part with a _target_"
    return NOUNS.get(cls, "another type")


def bounds(annotation: object) -> list[Ge | Gt | Le | Lt | MaxLen | MinLen]:
    """The limits that an `Annotated` type carries."""
    return [mark for mark in get_args(annotation)[1:] if type(mark) in LIMITS]


def fits(value: object, annotation: object) -> bool:
    """Return whether a plain value has a type, strictly: text is not a number, 2.0 not an int."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        within = (_within(value, mark) for mark in bounds(annotation))
        return fits(value, arguments[0]) and (value is None or all(within))
    if origin in (Union, UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    cls = origin or annotation
    if cls is Part:
        return value is not None
    if cls is list:
        return isinstance(value, list) and all(
            fits(item, member) for item in value for member in arguments
        )
    if cls is dict:
        kinds = arguments or (Any, Any)
        return isinstance(value, dict) and all(
            fits(key, kinds[0]) and fits(item, kinds[1]) for key, item in value.items()
        )
    if cls is float:
        return type(value) in (int, float)
    if cls in (None, NoneType):
        return value is None
    return type(value) is cls if cls in NOUNS else True


def is_finite(value: object) -> bool:
    """Return whether all numbers in a plain value are finite, and the whole ones have 64 bits."""
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list):
        return all(map(is_finite, value))
    if isinstance(value, int):
        return abs(value) < 2**63
    return not isinstance(value, float) or math.isfinite(value)


def _within(value: Any, mark: Ge | Gt | Le | Lt | MaxLen | MinLen) -> bool:
    name, _, is_within = LIMITS[type(mark)]
    size = len(value) if isinstance(mark, MinLen | MaxLen) else value
    return bool(is_within(size, getattr(mark, name)))


def check_call(where: str, function: Callable[..., object], *names: str, **named: object) -> None:
    """Check that a function of the user's takes the arguments with which it will be called."""
    try:
        inspect.signature(function).bind(*names, **named)
    except TypeError as error:
        given = ", ".join([*names, *(f"{name}={value}" for name, value in named.items())])
        raise ConfigError(f"{where}: {error}; it is called with ({given}).") from None
    # A function in C may have no signature.
    except ValueError:
        return


def check_bounds(
    owner: str,
    function: Callable[..., object],
    positional: Sequence[object],
    named: Mapping[str, object],
) -> None:
    """Raise a ValueError if a number or text is outside the bounds of its annotation."""
    try:
        signature = inspect.signature(function, eval_str=True)
        values = signature.bind(*positional, **named).arguments
    # The call itself reports missing arguments.
    except (TypeError, NameError):
        return
    for name, value in values.items():
        if type(value) not in (int, float, str):
            continue
        members = [
            member
            for member in _bounds_of_members(signature.parameters[name].annotation)
            if fits(value, get_args(member)[0])
        ]
        if members and not any(fits(value, member) for member in members):
            raise ValueError(f"{owner}: {name}={show(value)}: should be {describe(members[0])}.")


def _bounds_of_members(annotation: object) -> Iterator[object]:
    """The members of a type that have bounds."""
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _bounds_of_members(member)
    elif get_origin(annotation) is Annotated and bounds(annotation):
        yield annotation
