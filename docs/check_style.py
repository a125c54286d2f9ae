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
PRONOUN = re.compile(r"#+ *(It|Its|They|Their|These|Those|This|Most|Either|Neither|Both|Some)\b")
"""First words of a comment that is understood only after the line below it."""
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
        case ast.Expr(value=ast.IfExp()):
            return "a conditional expression as a statement: use if and else"
        case ast.Subscript(slice=index) if _is_bool(index):
            return "a bool as an index: use a conditional expression"
        case ast.BinOp(op=ast.Mult(), left=left, right=right) if _is_bool(left) or _is_bool(right):
            return "a bool as a factor: use a conditional expression"
        case ast.FormattedValue(value=value) if _contains_f_string(value):
            return "an f-string in an f-string: name the inner text first"
    return None


def _is_bool(node: ast.AST) -> bool:
    """Return whether an expression is a truth value by its form."""
    if isinstance(node, ast.Slice):
        return any(_is_bool(part) for part in (node.lower, node.upper) if part is not None)
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_not or (isinstance(node, ast.Compare) and not _is_elementwise(node))


def _is_elementwise(node: ast.Compare) -> bool:
    """Return whether a comparison may be one of tensors, whose result is a mask."""
    return not any(isinstance(op, ast.In | ast.NotIn | ast.Is | ast.IsNot) for op in node.ops)


def _contains_f_string(node: ast.AST) -> bool:
    return any(isinstance(child, ast.JoinedStr) for child in ast.walk(node))


def problems_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the description of each broken rule."""
    for node in ast.walk(ast.parse(text)):
        if problem := problem_of(node):
            yield getattr(node, "lineno", 0), problem
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
