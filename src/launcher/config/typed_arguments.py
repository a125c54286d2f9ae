"""Settings as the types that a class declares, where YAML has no such type.

A list becomes a tuple or a set, and a text a path or a member of an enumeration. The stored
configuration keeps the plain values.
"""

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from functools import wraps
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from launcher.config.messages import show
from launcher.errors import ConfigError

COLLECTIONS = (tuple, set, frozenset)
"""Classes of a list's items that YAML does not have."""
PLAIN = (str, bool, int, float, list, dict, NoneType)


def with_types(target: Callable[..., Any], where: str) -> Callable[..., Any]:
    """Return a function that calls `target` with converted settings, or `target` itself.

    Args:
        target: a class or function.
        where: the path of its node, for messages.
    """
    types = converted_arguments(target)
    if not types:
        return target

    @wraps(target, updated=())
    def call(*positional: object, **settings: object) -> Any:
        converted = {
            name: convert(settings[name], types[name], f"{where}.{name}".lstrip("."))
            for name in settings.keys() & types.keys()
        }
        return target(*positional, **{**settings, **converted})

    return call


def converted_arguments(target: Callable[..., Any]) -> dict[str, object]:
    """Return the annotations that need a conversion, by argument."""
    try:
        parameters = inspect.signature(target, eval_str=True).parameters
    # A function in C may have no signature, and an annotation may name what does not exist.
    except (TypeError, ValueError, NameError, AttributeError):
        return {}
    return {
        name: parameter.annotation
        for name, parameter in parameters.items()
        if needs_conversion(parameter.annotation)
    }


def needs_conversion(annotation: object) -> bool:
    cls = get_origin(annotation) or annotation
    if isinstance(cls, type) and issubclass(cls, (*COLLECTIONS, PurePath, Enum)):
        return True
    return any(map(needs_conversion, get_args(annotation)))


def convert(value: Any, annotation: Any, where: str) -> Any:
    """Return a plain value as its declared type; other values stay as they are."""
    cls = get_origin(annotation) or annotation
    arguments = get_args(annotation)
    if cls is Annotated:
        return convert(value, arguments[0], where)
    if cls in (Union, UnionType):
        return _convert_to_one(value, arguments, where)
    if not isinstance(cls, type):
        return value
    if issubclass(cls, (list, *COLLECTIONS)) and isinstance(value, list):
        return _convert_list(value, cls, arguments, where)
    if cls is dict and isinstance(value, dict) and arguments:
        return {key: convert(item, arguments[1], where) for key, item in value.items()}
    if issubclass(cls, PurePath) and isinstance(value, str):
        return cls(value)
    if issubclass(cls, Enum) and not isinstance(value, cls):
        return _member(value, cls, where)
    return value


def _convert_to_one(value: Any, members: tuple[Any, ...], where: str) -> Any:
    """Convert to the first member of a union that takes the value, unless one takes it plain."""
    classes = [get_origin(member) or member for member in members]
    if type(value) in PLAIN and type(value) in classes:
        return convert(value, members[classes.index(type(value))], where)
    errors = []
    for member in members:
        try:
            converted = convert(value, member, where)
        except ConfigError as error:
            errors.append(error)
            continue
        if converted is not value:
            return converted
    if errors:
        raise errors[0]
    return value


def _convert_list(value: list[Any], cls: type, arguments: tuple[Any, ...], where: str) -> Any:
    is_fixed = cls is tuple and arguments[1:] != (Ellipsis,)
    types = arguments if is_fixed else arguments[:1] * len(value)
    items = value
    if len(types) == len(value):
        items = [convert(item, kind, where) for item, kind in zip(value, types, strict=True)]
    # A named tuple takes its fields one by one.
    return cls(*items) if hasattr(cls, "_fields") else cls(items)


def _member(value: Any, cls: type[Enum], where: str) -> Enum:
    """Return the member with this name, or with this value."""
    members: Mapping[str, Enum] = cls.__members__
    if isinstance(value, str) and value in members:
        return members[value]
    for member in cls:
        if type(member.value) is type(value) and member.value == value:
            return member
    raise ConfigError(f"{where}={show(value)}: should be one of {', '.join(members)}.")
