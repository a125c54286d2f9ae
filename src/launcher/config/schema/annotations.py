"""Annotations read from source.

A name counts by its last part: `nn.Module` is `Module`.

A type is kept if YAML can express it: int, float, bool, str, None, list, dict, Literal, unions and
`Annotated` bounds. `Path` counts as text that is not empty; tuples, sets and sequences count as
lists. A class that YAML cannot express (`Tensor`) is dropped from a union: `lr: float | Tensor`
must be a number in a configuration. Every other name is `Any`, unless it is an alias in the same
module (`Kind = Literal["a", "b"]`).
"""

import ast
import copy
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin

import annotated_types

from launcher import types as bounded
from launcher.config.schema.value_types import LIMITS, Part

BOUNDS = tuple(LIMITS)


NAMES: dict[str, Any] = {
    "int": int, "float": float, "bool": bool, "str": str, "AnyStr": str,
    **dict.fromkeys(["Path", "PurePath", "PathLike"], bounded.NonEmptyText),
    "Literal": Literal, "Optional": Optional, "Union": Union, "Annotated": Annotated,
    **dict.fromkeys(["Collection", "Iterable", "List", "MutableSequence", "list"], list),
    "Sequence": list,
    **dict.fromkeys(["FrozenSet", "Set", "Tuple", "frozenset", "set", "tuple"], tuple),
    **dict.fromkeys(["Dict", "Mapping", "MutableMapping", "dict"], dict),
    **dict.fromkeys(["Generator", "Tensor", "Module", "Parameter", "Optimizer", "Dataset"], Part),
    **dict.fromkeys(["Signals", "timedelta"], Part),
    **{cls.__name__: cls for cls in BOUNDS},
}  # fmt: skip
TYPE_SYNTAX = (
    *(ast.Name, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.Call, ast.keyword),
    *(ast.BinOp, ast.BitOr, ast.UnaryOp, ast.USub, ast.Load),
)


class _Names(dict[str, Any]):
    """The names that a module binds, as a namespace for `eval`."""

    def __init__(self, statements: Mapping[str, Any]):
        super().__init__(NAMES)
        self.statements = statements

    def __missing__(self, name: str) -> Any:
        statement = self.statements.get(name)
        # An alias that refers to itself is found to be Any.
        self[name] = Any
        if isinstance(statement, ast.Assign):
            self[name] = evaluate(statement.value, self.statements)
        elif statement is None or statement == f"{bounded.__name__}.{name}":
            self[name] = vars(bounded).get(name, Any)
        return self[name]


def evaluate(node: ast.expr | None, statements: Mapping[str, object]) -> Any:
    """Return the type of an annotation, or `Any` where it does not restrict a YAML value."""
    if node is None:
        return Any
    try:
        spelled = _Spelled().visit(copy.deepcopy(node))
        if not all(isinstance(part, TYPE_SYNTAX) for part in ast.walk(spelled)):
            return Any
        code = compile(ast.fix_missing_locations(ast.Expression(spelled)), "annotation", "eval")
        return _plain(eval(code, {"__builtins__": {}}, _Names(statements)))
    except (TypeError, SyntaxError, ValueError, RecursionError):
        return Any


class _Spelled(ast.NodeTransformer):
    """Rewrites dotted names to their last part, and quoted annotations to what they quote."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Name(node.attr, ast.Load())

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        quoted: ast.AST = self.visit(ast.parse(node.value, mode="eval").body)
        return quoted

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = self.visit(node.value)
        if not isinstance(name, ast.Name) or name.id == "Literal":
            return ast.Subscript(name, node.slice, ast.Load())
        if name.id == "Annotated" and isinstance(node.slice, ast.Tuple):
            base, *marks = node.slice.elts
            bounds = [mark for mark in map(self.visit, marks) if isinstance(mark, ast.Call)]
            bounded = ast.Tuple([self.visit(base), *bounds], ast.Load())
            if bounds:
                return ast.Subscript(name, bounded, ast.Load())
            return base
        return ast.Subscript(name, self.visit(node.slice), ast.Load())


def _plain(hint: Any) -> Any:
    """A type as YAML can express it."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Union, UnionType):
        members = [member for member in map(_plain, arguments) if member is not Part]
        if str in members:
            members = [member for member in members if member != bounded.NonEmptyText]
        if not members:
            return Part
        return Any if Any in members else Union[tuple(members)]  # noqa: UP007
    if origin in (list, tuple):
        items = {_plain(argument) for argument in arguments if argument is not Ellipsis}
        item = items.pop() if len(items) == 1 else Any
        many: Any = list[Any if item is Part else item]  # type: ignore[misc]
        size = len(arguments)
        # People write `tuple[int]` for any number of items.
        if origin is list or Ellipsis in arguments or size < 2:
            return many
        return Annotated[many, annotated_types.MinLen(size), annotated_types.MaxLen(size)]
    if origin is dict:
        key, item = map(_plain, arguments)
        key = Any if key is Part else key
        return dict[key, item]  # type: ignore[valid-type]
    if origin is Annotated:
        marks = [mark for mark in hint.__metadata__ if isinstance(mark, BOUNDS)]
        if len(marks) == len(hint.__metadata__):
            return hint
        return _plain(hint.__origin__)
    return list if hint is tuple else hint
