"""Annotations read from source: the types that a value of a configuration can have, and `Any` for the rest.

What comes out is built of int, float, bool, str, None, list, dict, Literal, unions and `Annotated` bounds:
what YAML can say. `Path` counts as text, tuples, sets and sequences as lists. A class that YAML cannot
write down (`Tensor`) drops out of a union: `lr: float | Tensor` must be a number in a configuration.
"""

import ast
import builtins
from functools import reduce
from typing import Annotated, Any, Literal, Union

import annotated_types

from launcher import types as bounded
from launcher.config.source import Module, NotThere, Opaque, dotted_name, full_name, refer

PLAIN = {"int": int, "float": float, "bool": bool, "str": str, "None": None, "list": list, "dict": dict}
LISTS = {
    "Collection", "FrozenSet", "Iterable", "List", "MutableSequence", "Sequence", "Set", "Tuple", "frozenset",
    "list", "set", "tuple",
}  # fmt: skip
DICTS = {"dict", "Dict", "Mapping", "MutableMapping"}
TEXTS = {"pathlib.Path", "pathlib.PurePath", "os.PathLike", "typing.AnyStr"}
TYPING = ("typing.", "typing_extensions.", "collections.abc.")
UNWRITABLE = {
    "torch.Generator", "torch.Tensor", "torch.nn.Module", "torch.nn.Parameter", "torch.optim.Optimizer",
}  # fmt: skip

_DROPPED = object()
"""A type of which no plain value of a configuration is."""


def evaluate(node: ast.expr | None, module: Module) -> Any:
    """The type of an annotation in the source of a module; `Any` where it says nothing about plain values."""
    found = _evaluate(node, module, 0) if node is not None else Any
    return Any if found is _DROPPED else found


def _evaluate(node: ast.AST, module: Module, hops: int) -> Any:
    if hops > 10:
        return Any
    if isinstance(node, ast.Constant):
        return _constant(node, module, hops)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([_evaluate(side, module, hops) for side in (node.left, node.right)])
    if isinstance(node, ast.Subscript):
        return _subscript(node, module, hops)
    return _named(node, module, hops) if dotted_name(node) else Any


def _constant(node: ast.Constant, module: Module, hops: int) -> Any:
    if node.value is None:
        return None
    if isinstance(node.value, str):
        try:
            return _evaluate(ast.parse(node.value, mode="eval").body, module, hops + 1)
        except SyntaxError:
            return Any
    return Any


def _named(node: ast.AST, module: Module, hops: int) -> Any:
    full = full_name(module, node)
    short = full.rpartition(".")[2]
    if full in UNWRITABLE:
        return _DROPPED
    if full in TEXTS:
        return str
    if full.startswith("launcher.types.") and hasattr(bounded, short):
        return getattr(bounded, short)
    if full.startswith(TYPING) or full in vars(builtins):
        if short in LISTS:
            return list
        if short in DICTS:
            return dict
        return PLAIN.get(full, Any)
    is_imported = full != dotted_name(node)
    if is_imported and full.split(".")[0] != module.name.split(".")[0]:
        return Any
    return _own(node, module, hops)


def _own(node: ast.AST, module: Module, hops: int) -> Any:
    """A name of the user's own package: an alias (`Size = int | None`) is followed, a class is not for YAML
    to write."""
    try:
        found = refer(module, node)
    except (NotThere, Opaque):
        return Any
    if isinstance(found, Module):
        return Any
    if isinstance(found.node, ast.ClassDef):
        return Any if found.node.bases else _DROPPED  # with bases it may be an Enum or a TypedDict
    value = getattr(found.node, "value", None)
    return _evaluate(value, found.module, hops + 1) if isinstance(value, ast.AST) else Any


def _subscript(node: ast.Subscript, module: Module, hops: int) -> Any:
    full = full_name(module, node.value)
    short = full.rpartition(".")[2]
    items: list[ast.AST] = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if short == "Literal":
        values = [item.value for item in items if isinstance(item, ast.Constant)]
        return Literal[tuple(values)] if len(values) == len(items) else Any
    if short == "Annotated":
        return _annotated(_evaluate(items[0], module, hops), items[1:], module)
    if short in ("Optional", "Union"):
        members = [_evaluate(item, module, hops) for item in items]
        return _union([*members, None] if short == "Optional" else members)
    if short in ("Final", "ClassVar", "InitVar", "Required", "NotRequired"):
        return _evaluate(items[0], module, hops)
    if short in LISTS:
        kinds = [_evaluate(item, module, hops) for item in items if not _is_ellipsis(item)]
        kind = kinds[0] if kinds and all(one == kinds[0] for one in kinds) else Any
        return list[Any if kind is _DROPPED else kind]  # type: ignore[misc]
    if short in DICTS:
        kind = _evaluate(items[-1], module, hops)
        return dict[str, Any if kind is _DROPPED else kind]  # type: ignore[misc]
    return Any


def _annotated(base: Any, marks: list[ast.AST], module: Module) -> Any:
    """`Annotated[int, Gt(0)]` with bounds of annotated_types that are written out; other metadata says
    nothing here."""
    found = []
    for mark in marks:
        if isinstance(mark, ast.Call) and len(mark.args) == 1:
            name = full_name(module, mark.func).rpartition(".")[2]
            if name in ("Gt", "Ge", "Lt", "Le"):
                found.append(getattr(annotated_types, name)(literal(mark.args[0])))
    return reduce(lambda kind, mark: Annotated[kind, mark], found, base)


def _union(members: list[Any]) -> Any:
    kept = [member for member in members if member is not _DROPPED]
    if any(member is Any for member in kept):
        return Any
    return Union[tuple(kept)] if kept else _DROPPED  # noqa: UP007 - made at run time


def _is_ellipsis(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def literal(node: ast.AST | None, otherwise: Any = None) -> Any:
    """The value of a literal in source, or `otherwise` for any other expression."""
    try:
        return ast.literal_eval(node) if node is not None else otherwise
    except (ValueError, TypeError):
        return otherwise


__all__ = ["evaluate", "literal"]
