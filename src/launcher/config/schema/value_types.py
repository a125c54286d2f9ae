"""The type of a key or an argument: its words, whether a value fits it, and its JSON schema."""

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from launcher.config.messages import show
from launcher.errors import ConfigError

Schema = dict[str, Any]
"""A JSON schema."""
ELSEWHERE: list[Schema] = [
    {"type": "string", "pattern": r"\$\{.*\}"},
    {"const": "???"},
    {"type": "object", "required": ["_target_"]},
]
"""Values that any key may have: an interpolation, a missing value that the command line must give,
or a part."""
EPOCHS: Schema = {"type": "string", "pattern": r"^[0-9.]+ *epochs?$"}
"""A number of epochs in place of a number of steps."""


class Part:
    """A type that YAML cannot express, such as a module: a node with `_target_` makes it."""

    def __class_getitem__(cls, _: object) -> type["Part"]:
        return cls


@dataclass(frozen=True)
class Limit:
    attribute: str
    """The name of its number in `annotated_types`."""
    words: str
    holds: Callable[[Any, Any], bool]
    schema: str
    """Its keyword in a JSON schema."""


def _is_as_long(value: Sized, limit: int) -> bool:
    return len(value) >= limit


def _is_as_short(value: Sized, limit: int) -> bool:
    return len(value) <= limit


LIMITS = {
    Gt: Limit("gt", "greater than", operator.gt, "exclusiveMinimum"),
    Ge: Limit("ge", "of at least", operator.ge, "minimum"),
    Lt: Limit("lt", "less than", operator.lt, "exclusiveMaximum"),
    Le: Limit("le", "of at most", operator.le, "maximum"),
    MinLen: Limit("min_length", "with a length of at least", _is_as_long, "minLength"),
    MaxLen: Limit("max_length", "with a length of at most", _is_as_short, "maxLength"),
}


class ValueType:
    """A type as it was parsed. This one is of anything that YAML does not restrict."""

    def describe(self) -> str:
        """Describe it in words."""
        return "another type"

    def fits(self, value: Any) -> bool:
        """Return whether a plain value has it, strictly: a text is not a number, 2.0 not an int."""
        return True

    def schemas(self) -> list[Schema]:
        """Return the alternatives of a JSON schema."""
        return [{}]


ANYTHING = ValueType()


@dataclass(frozen=True)
class Scalar(ValueType):
    words: str
    name: str
    """Its name in a JSON schema."""
    classes: tuple[type, ...]
    others: tuple[Schema, ...] = ()
    """Further JSON schemas of its values."""

    def describe(self) -> str:
        return self.words

    def fits(self, value: Any) -> bool:
        return type(value) in self.classes

    def schemas(self) -> list[Schema]:
        return [{"type": self.name}, *self.others]


class PartType(ValueType):
    def describe(self) -> str:
        return "a part with a _target_"

    def fits(self, value: Any) -> bool:
        return value is not None


@dataclass(frozen=True)
class OneOfValues(ValueType):
    choices: tuple[Any, ...]

    def describe(self) -> str:
        listed = ", ".join(show(value).strip("'") for value in self.choices)
        return f"one of {listed}" if len(self.choices) > 1 else listed

    def fits(self, value: Any) -> bool:
        return any(type(value) is type(choice) and value == choice for choice in self.choices)

    def schemas(self) -> list[Schema]:
        return [{"enum": list(self.choices)}]


@dataclass(frozen=True)
class OneOfTypes(ValueType):
    members: Sequence[ValueType]

    def describe(self) -> str:
        # A list comes last, since "or null" would be an item's.
        texts = [member.describe() for member in self.members]
        return " or ".join(sorted(texts, key=lambda text: text.startswith("a list")))

    def fits(self, value: Any) -> bool:
        return any(member.fits(value) for member in self.members)

    def schemas(self) -> list[Schema]:
        return [schema for member in self.members for schema in member.schemas()]


@dataclass(frozen=True)
class ListType(ValueType):
    item: ValueType

    def describe(self) -> str:
        if self.item is ANYTHING:
            return "a list"
        return f"a list, each item {self.item.describe()}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and all(map(self.item.fits, value))

    def schemas(self) -> list[Schema]:
        return [{"type": "array", "items": {"anyOf": [*self.item.schemas(), *ELSEWHERE]}}]


@dataclass(frozen=True)
class MappingType(ValueType):
    key: ValueType
    item: ValueType

    def describe(self) -> str:
        if isinstance(self.item, PartType | MappingType):
            return "a mapping of names to parts"
        typed = "" if self.key in (ANYTHING, TEXT) else f", each key {self.key.describe()}"
        return f"a mapping of keys to values{typed}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict) and all(
            self.key.fits(key) and self.item.fits(item) for key, item in value.items()
        )

    def schemas(self) -> list[Schema]:
        return [{"type": "object"}]


@dataclass(frozen=True)
class LimitedType(ValueType):
    base: ValueType
    limits: Mapping[type, Any]
    """The number of each limit."""

    def describe(self) -> str:
        words = self.base.describe()
        limits = self.limits
        least = limits.get(Ge)
        most = limits.get(Le)
        if MinLen in limits and limits[MinLen] == limits.get(MaxLen):
            return words.replace("a list", f"a list of {limits[MinLen]}", 1)
        if limits == {MinLen: 1}:
            return f"{words} that is not empty"
        if least is not None and most is not None:
            return f"{words} from {least} to {most}"
        if least is not None and Lt in limits:
            return f"{words} from {least} to below {limits[Lt]}"
        texts = [f"{LIMITS[cls].words} {limit}" for cls, limit in limits.items()]
        return f"{words} {' and '.join(texts)}"

    def fits(self, value: Any) -> bool:
        limits = {} if value is None else self.limits
        return self.base.fits(value) and all(
            LIMITS[cls].holds(value, limit) for cls, limit in limits.items()
        )

    def schemas(self) -> list[Schema]:
        limits = {LIMITS[cls].schema: limit for cls, limit in self.limits.items()}
        if isinstance(self.base, ListType):
            limits = {name.replace("Length", "Items"): limit for name, limit in limits.items()}
        return [one if one is EPOCHS else one | limits for one in self.base.schemas()]


TEXT = Scalar("text", "string", (str,))
SCALARS: dict[object, ValueType] = {
    int: Scalar("a whole number", "integer", (int,), (EPOCHS,)),
    float: Scalar("a number", "number", (int, float)),
    bool: Scalar("true or false", "boolean", (bool,)),
    str: TEXT,
    None: Scalar("null", "null", (NoneType,)),
    NoneType: Scalar("null", "null", (NoneType,)),
    Part: PartType(),
}


def value_type(annotation: Any) -> ValueType:
    """Parse an annotation."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return OneOfValues(arguments)
    if origin is Annotated:
        marks = [mark for mark in arguments[1:] if type(mark) in LIMITS]
        limits = {type(mark): getattr(mark, LIMITS[type(mark)].attribute) for mark in marks}
        return LimitedType(value_type(arguments[0]), limits)
    if origin in (Union, UnionType):
        return OneOfTypes([*map(value_type, arguments)])
    if list in (origin, annotation):
        return ListType(*map(value_type, arguments or (Any,)))
    if dict in (origin, annotation):
        return MappingType(*map(value_type, arguments or (Any, Any)))
    return SCALARS.get(annotation, ANYTHING)


def describe(annotation: Any) -> str:
    """Describe a type in words: `int | None` is "a whole number or null"."""
    return value_type(annotation).describe()


def fits(value: object, annotation: object) -> bool:
    """Return whether a plain value has a type; see `ValueType.fits`."""
    return value_type(annotation).fits(value)


def is_finite(value: object) -> bool:
    """Return whether all numbers in a plain value are finite, and the whole ones have 64 bits."""
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list):
        return all(map(is_finite, value))
    if isinstance(value, int):
        return abs(value) < 2**63
    return not isinstance(value, float) or math.isfinite(value)


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
        annotation = signature.parameters[name].annotation
        limited = [kind for kind in _limited_types(annotation) if kind.base.fits(value)]
        if limited and not any(kind.fits(value) for kind in limited):
            raise ValueError(f"{owner}: {name}={show(value)}: should be {limited[0].describe()}.")


def _limited_types(annotation: object) -> list[LimitedType]:
    """Return the members of a type that have limits."""
    is_union = get_origin(annotation) in (Union, UnionType)
    members = get_args(annotation) if is_union else (annotation,)
    types = [value_type(member) for member in members if get_origin(member) is Annotated]
    return [kind for kind in types if isinstance(kind, LimitedType) and kind.limits]
