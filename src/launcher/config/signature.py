"""The signature of a `_target_` without importing it: a constructor's parameters are its configuration's
schema."""

import ast
from dataclasses import dataclass
from functools import cache
from typing import Any

from launcher.config.annotations import evaluate, literal
from launcher.config.source import Definition, Module, Opaque, dotted_name, full_name, locate, refer, statements

REQUIRED = object()
"""Default of a parameter that has none."""
UNKNOWN = object()
"""Default that is no literal in the source."""

KEEPING = {
    "abstractmethod", "cache", "classmethod", "contextmanager", "deprecated", "final", "inference_mode",
    "lru_cache", "no_grad", "override", "staticmethod",
}  # fmt: skip
"""Decorators under which a function keeps its signature."""
PLAIN_BASES = {"object", "abc.ABC", "typing.Generic", "typing.Protocol", "torch.nn.Module"}
"""Base classes whose own constructor takes nothing from a configuration."""


@dataclass(frozen=True)
class Parameter:
    name: str
    annotation: Any = Any
    default: Any = REQUIRED

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True)
class Signature:
    name: str
    """Last part of the target, for sentences."""
    parameters: tuple[Parameter, ...] = ()
    takes_more: bool = False
    """Has `**kwargs`: any further key passes."""
    varargs: bool = False

    def __getitem__(self, name: str) -> Parameter:
        return next(one for one in self.parameters if one.name == name)

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.parameters]


@cache
def signature(target: str) -> Signature | None:
    """The parameters of a class or function, `self` left out; None where only running code could tell.

    Raises:
        launcher.config.source.NotThere: there is no such module, or no such name in it.
    """
    try:
        found = locate(target)
        if isinstance(found, Module):
            return None
        return _of(found, target.rpartition(".")[2], is_method=_is_method(target))
    except (Opaque, RecursionError):
        return None


def _of(found: Definition, name: str, is_method: bool = False) -> Signature:
    if isinstance(found.node, ast.ClassDef):
        return _constructor(found, name) or Signature(name)
    if isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _function(found.node, found.module, name, skip_first=is_method)
    raise Opaque(name)


def _constructor(found: Definition, name: str) -> Signature | None:
    """The signature of a class's constructor, inherited ones included; None if no class of the line defines
    one."""
    node, module = found.node, found.module
    assert isinstance(node, ast.ClassDef)
    if any(
        (dotted_name(_bare(mark)) or "").split(".")[0] in ("attr", "attrs", "define") for mark in node.decorator_list
    ):
        raise Opaque(name)
    for method in ("__init__", "__new__"):
        for statement in reversed(list(statements(node.body))):
            if isinstance(statement, ast.FunctionDef) and statement.name == method and not _is_overload(statement):
                return _function(statement, module, name, skip_first=True)
    if _is_dataclass(node):
        return Signature(name, _fields(found))
    for base in node.bases:
        base = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
        if full_name(module, base) in PLAIN_BASES:
            continue
        above = refer(module, base)
        if not isinstance(above, Definition) or not isinstance(above.node, ast.ClassDef):
            raise Opaque(name)
        if inherited := _constructor(above, name):
            return inherited
    return None


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, module: Module, name: str, skip_first: bool = False
) -> Signature:
    marks = {(dotted_name(_bare(mark)) or "").rpartition(".")[2] for mark in node.decorator_list}
    if not marks <= KEEPING:
        raise Opaque(name)
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults)) + list(spec.defaults)
    pairs = list(zip(positional, defaults, strict=True))
    if skip_first and "staticmethod" not in marks:
        pairs = pairs[1:]
    pairs += list(zip(spec.kwonlyargs, spec.kw_defaults, strict=True))
    parameters = tuple(Parameter(arg.arg, evaluate(arg.annotation, module), _default(value)) for arg, value in pairs)
    return Signature(name, parameters, spec.kwarg is not None, spec.vararg is not None)


def _fields(found: Definition) -> tuple[Parameter, ...]:
    """The fields of a dataclass, its bases' first, as `dataclasses` orders them."""
    assert isinstance(found.node, ast.ClassDef)
    fields: dict[str, Parameter] = {}
    for base in found.node.bases:
        base = base.value if isinstance(base, ast.Subscript) else base
        above = refer(found.module, base) if full_name(found.module, base) not in PLAIN_BASES else None
        if isinstance(above, Definition) and isinstance(above.node, ast.ClassDef) and _is_dataclass(above.node):
            fields |= {one.name: one for one in _fields(above)}
    for statement in found.node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if "ClassVar" in ast.unparse(statement.annotation):
            continue
        default = _default(statement.value)
        if isinstance(statement.value, ast.Call) and (dotted_name(statement.value.func) or "").endswith("field"):
            options = {keyword.arg: keyword.value for keyword in statement.value.keywords}
            if literal(options.get("init"), True) is False:
                continue
            default = _default(options.get("default")) if "default_factory" not in options else UNKNOWN
        name = statement.target.id
        fields[name] = Parameter(name, evaluate(statement.annotation, found.module), default)
    return tuple(fields.values())


def _default(node: ast.expr | None) -> Any:
    return REQUIRED if node is None else literal(node, UNKNOWN)


def _bare(mark: ast.expr) -> ast.expr:
    return mark.func if isinstance(mark, ast.Call) else mark


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any((dotted_name(_bare(mark)) or "").rpartition(".")[2] == "dataclass" for mark in node.decorator_list)


def _is_overload(node: ast.FunctionDef) -> bool:
    return any((dotted_name(mark) or "").rpartition(".")[2] == "overload" for mark in node.decorator_list)


def _is_method(target: str) -> bool:
    owner = locate(target.rpartition(".")[0]) if "." in target else None
    return isinstance(owner, Definition) and isinstance(owner.node, ast.ClassDef)
