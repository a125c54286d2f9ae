"""Checks that code is not dense, and that a comment begins with its noun: `make lint` runs it.

A line that must break a rule ends with `style: ok` in a comment.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "benchmarks", "docs")
PRONOUN = re.compile(
    r"#+ *(It|Its|They|Their|This|These|That|Those|Such|One|Others|Most|Some|Both|Either|Neither"
    r"|Here|There|So)\b"
)
"""First words of a comment that is understood only after the line below it."""
TEXTS_AND_LISTS = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple)
EXCEPTION = "style: ok"


def comments(text: str) -> list[tuple[int, str]]:
    """Return the first line of each block of comments that stands above code, and its number."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    rows = {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}
    lines = text.splitlines()
    own = {row: string for row, string in rows.items() if lines[row - 1].lstrip().startswith("#")}
    return [(row, string) for row, string in sorted(own.items()) if row - 1 not in own]


def problem_of(node: ast.AST) -> str | None:
    """Return what is dense about a node, and what to write in its place."""
    match node:
        case ast.Assign(targets=[_, _, *_]):
            return "a chained assignment: use a statement for each name"
        case ast.Assign(targets=[ast.Tuple(elts=[_, _, _, *_])], value=ast.Tuple()):
            return "a tuple assignment of three or more: use a statement for each name"
        case ast.Expr(value=ast.IfExp() | ast.BoolOp()):
            return "a conditional expression as a statement: use if and else"
        case ast.IfExp(body=ast.IfExp()) | ast.IfExp(orelse=ast.IfExp()):
            return "a conditional expression in another: use if and else"
        case ast.For(iter=ast.IfExp() as items) | ast.comprehension(iter=ast.IfExp() as items) if (
            _is_empty(items.body) or _is_empty(items.orelse)
        ):
            return "a loop over nothing: use if"
        case ast.Subscript(value=value, slice=index) if _is_bool_index(value, index):
            return "a bool as an index: use a conditional expression"
        case ast.BinOp(op=ast.Mult(), left=left, right=right) if _is_bool_index(
            left, right
        ) or _is_bool_index(right, left):
            return "a bool as a factor: use a conditional expression"
        case ast.ExceptHandler(type=ast.Name(id="Exception" | "BaseException") | None) if (
            not _tells_of_error(node)
        ):
            return "a broad except that hides the error: log it, or name the classes"
        case ast.Call(func=ast.Name(id="suppress"), args=[ast.Name(id="Exception")]):
            return "a broad suppress: name the classes"
        case ast.FormattedValue(value=value) if _contains_f_string(value):
            return "an f-string in an f-string: name the inner text first"
    return None


def _is_empty(node: ast.AST) -> bool:
    return isinstance(node, ast.Tuple | ast.List) and not node.elts


def _is_bool_index(value: ast.AST, index: ast.AST) -> bool:
    """Return whether an index of a value, or a factor, is a truth value by its form."""
    if isinstance(index, ast.Slice):
        return any(_is_bool(part) for part in (index.lower, index.upper, index.step))
    # Other comparisons may be of tensors, and give a mask.
    is_single = isinstance(index, ast.UnaryOp) or _has_single_value(index)
    return _is_bool(index) and (is_single or isinstance(value, TEXTS_AND_LISTS))


def _is_bool(node: ast.AST | None) -> bool:
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.startswith(("is_", "has_"))
    return False


def _has_single_value(node: ast.AST) -> bool:
    """Return whether a comparison gives one truth value, even of tensors."""
    single = ast.In | ast.NotIn | ast.Is | ast.IsNot
    return isinstance(node, ast.Compare) and any(isinstance(op, single) for op in node.ops)


def _tells_of_error(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler raises, uses its error, or passes it to a log."""
    for node in ast.walk(handler):
        match node:
            case ast.Raise() | ast.Call(func=ast.Attribute(attr="print_exc" | "handleError")):
                return True
            case ast.keyword(arg="exc_info"):
                return True
            case ast.Name(id=name) if name == handler.name:
                return True
    return False


def _contains_f_string(node: ast.AST) -> bool:
    return any(isinstance(child, ast.JoinedStr) for child in ast.walk(node))


def problems_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the description of each broken rule."""
    for node in ast.walk(ast.parse(text)):
        if problem := problem_of(node):
            place = node.iter if isinstance(node, ast.comprehension) else node
            yield getattr(place, "lineno", 0), problem
    for row, comment in comments(text):
        if match := PRONOUN.match(comment):
            yield row, f"a comment begins with {match[1]!r}: begin with its noun"


def problems() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            lines = text.splitlines()
            for row, problem in sorted(problems_in(text)):
                if EXCEPTION not in lines[row - 1]:
                    yield f"{path.relative_to(ROOT)}:{row}: {problem}"


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))
