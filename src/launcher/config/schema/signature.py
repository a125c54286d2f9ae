"""The signature of a `_target_`, read without importing it."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from launcher.config.schema.annotations import evaluate
from launcher.config.schema.source import (
    Definition,
    NotFound,
    Unresolvable,
    bind,
    bindings,
    cached_by_sources,
    last_name,
    locate,
    refer,
)

REQUIRED = object()
"""Default of a parameter that has none."""
UNKNOWN = object()
"""Default that is not a literal in the source."""

NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
SIGNATURE_PRESERVING = {
    "abstractmethod", "cache", "contextmanager", "deprecated", "final", "inference_mode",
    "lru_cache", "no_grad", "override",
}  # fmt: skip
"""Decorators that keep a function's signature."""
PLAIN_BASES = {"object", "ABC", "Generic", "Protocol", "Module"}
"""Base classes whose constructors take nothing from a configuration."""


@dataclass(frozen=True)
class Parameter:
    name: str
    annotation: object = Any
    default: Any = REQUIRED

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    @property
    def has_default(self) -> bool:
        """Return whether its default is known."""
        return self.default is not REQUIRED and self.default is not UNKNOWN


@dataclass(frozen=True)
class Signature:
    name: str
    """Last part of the target, for messages."""
    parameters: tuple[Parameter, ...] = ()
    takes_more: bool = False
    """True with `**kwargs`: any other key passes."""
    is_function: bool = False

    def __getitem__(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    @property
    def names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters]

    @property
    def defaults(self) -> dict[str, Any]:
        """The known defaults by name."""
        return {each.name: each.default for each in self.parameters if each.has_default}


@dataclass(frozen=True)
class ClassSource:
    """A class or function as its source defines it, found once, with each answer read once."""

    name: str
    """Last part of the target, for messages."""
    definition: Definition | None = None
    """The class or function, or None if there is none or only running code defines it."""
    missing: NotFound | None = None
    """The error of a target that does not exist."""

    @cached_property
    def signature(self) -> Signature:
        """The parameters; it takes any, if only running code defines them.

        Raises:
            launcher.config.schema.source.NotFound: the class, or a base of it, does not exist.
        """
        if self.missing is not None:
            raise self.missing
        try:
            if self.definition is None:
                raise Unresolvable(self.name)
            if isinstance(self.definition.node, ast.ClassDef):
                return _constructor(self.definition, self.name) or Signature(self.name)
            return _function(self.definition, self.name)
        except (Unresolvable, RecursionError):
            return Signature(self.name, takes_more=True)

    @cached_property
    def attributes(self) -> tuple[Mapping[str, Any], bool]:
        """The literals that are attributes of a class, or of the module of a function.

        They are the own and inherited values by name, `UNKNOWN` for values of other expressions;
        and whether there may be more, since the class or a base of it cannot be read.
        """
        try:
            if self.definition is None:
                return ({}, True)
            return _attributes(self.definition)
        except (NotFound, Unresolvable, RecursionError):
            return {}, True

    @property
    def place(self) -> tuple[str, str] | None:
        """The module and the name where it is defined, or None."""
        if self.definition is None or not isinstance(self.definition.node, NAMED):
            return None
        return self.definition.module.name, self.definition.node.name


def class_source(target: object) -> ClassSource:
    """Return what the source of a `_target_` says; nothing if it is not a text."""
    return _read(target) if isinstance(target, str) else ClassSource("")


@cached_by_sources
def _read(target: str) -> ClassSource:
    name = target.rpartition(".")[2]
    try:
        found = locate(target)
    except NotFound as error:
        return ClassSource(name, missing=error)
    except (Unresolvable, RecursionError):
        return ClassSource(name)
    return ClassSource(name, found if isinstance(found, Definition) else None)


def signature_of(target: object) -> Signature:
    """Return a signature. That of a target that is not known or not there takes any parameter."""
    source = class_source(target)
    try:
        return source.signature
    except NotFound:
        return Signature(source.name, takes_more=True)


def defined_as(target: str) -> str:
    """Return the name under which a class or function is defined, or its own if it is not found."""
    place = class_source(target).place
    return target if place is None else ".".join(place)


def _attributes(definition: Definition) -> tuple[dict[str, object], bool]:
    node = definition.node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _literals(bindings(definition.module)[0]), False
    if not isinstance(node, ast.ClassDef):
        return {}, True
    values = _literals(bind(node.body)[0])
    has_more = False
    for base in _bases(definition):
        inherited, is_unread = ({}, True) if base is None else _attributes(base)
        values = inherited | values
        has_more = has_more or is_unread
    return values, has_more


def _literals(names: Mapping[str, object]) -> dict[str, object]:
    return {
        name: _default(statement.value)
        for name, statement in names.items()
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
    }


def _constructor(definition: Definition, name: str) -> Signature | None:
    """Return the signature of a class's constructor, its own or inherited, or None."""
    node = definition.node
    assert isinstance(node, ast.ClassDef)
    names, _ = bind(node.body)
    for method in ("__init__", "__new__"):
        if isinstance(function := names.get(method), ast.FunctionDef):
            return _function(Definition(function, definition.module), name, True)
    if _is_dataclass(node):
        return Signature(name, tuple(_fields(definition).values()))
    # A decorator may make a constructor, as `attrs.define` does.
    if node.decorator_list:
        raise Unresolvable(name)
    for base in _bases(definition):
        if base is None:
            raise Unresolvable(name)
        inherited = _constructor(base, name)
        if inherited:
            return inherited
    return None


def _bases(definition: Definition) -> Iterator[Definition | None]:
    """List the base classes whose constructors count, with None for each that cannot be read."""
    assert isinstance(definition.node, ast.ClassDef)
    for base in definition.node.bases:
        base = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
        if last_name(base) in PLAIN_BASES:
            continue
        above = refer(definition.module, base)
        if isinstance(above, Definition) and isinstance(above.node, ast.ClassDef):
            yield above
        else:
            yield None


def _function(definition: Definition, name: str, is_constructor: bool = False) -> Signature:
    node = definition.node
    (aliases, _) = bindings(definition.module)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        raise Unresolvable(name)
    if not set(map(last_name, node.decorator_list)) <= SIGNATURE_PRESERVING:
        raise Unresolvable(name)
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [*[None] * (len(positional) - len(spec.defaults)), *spec.defaults]
    pairs = list(zip(positional, defaults, strict=True))[1 if is_constructor else 0 :]
    parameters = tuple(
        Parameter(arg.arg, evaluate(arg.annotation, aliases), _default(value))
        for arg, value in [*pairs, *zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]
    )
    return Signature(name, parameters, spec.kwarg is not None, not is_constructor)


def _fields(definition: Definition) -> dict[str, Parameter]:
    """The fields of a dataclass, its bases' first, as `dataclasses` orders them."""
    assert isinstance(definition.node, ast.ClassDef)
    fields: dict[str, Parameter] = {}
    for base in _bases(definition):
        if base is not None:
            fields |= _fields(base)
    if not _is_dataclass(definition.node):
        return fields
    for statement in definition.node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if "ClassVar" in ast.unparse(statement.annotation):
            continue
        name = statement.target.id
        default = _default(statement.value)
        call = statement.value
        if isinstance(call, ast.Call) and last_name(call) == "field":
            options = {keyword.arg: keyword.value for keyword in call.keywords}
            if "init" in options and _default(options["init"]) is False:
                continue
            default = UNKNOWN if "default_factory" in options else _default(options.get("default"))
        annotation = evaluate(statement.annotation, bindings(definition.module)[0])
        fields[name] = Parameter(name, annotation, default)
    return fields


def _default(node: ast.expr | None) -> object:
    if node is None:
        return REQUIRED
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return UNKNOWN


def _is_dataclass(node: ast.ClassDef) -> bool:
    return "dataclass" in map(last_name, node.decorator_list)
