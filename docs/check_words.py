"""Checks the English of docstrings, comments, messages and pages: `make lint` runs it.

CONTRIBUTING.md has the rules. A line that must break one ends with `words: ok` in a comment.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = ("src", "benchmarks", "docs")
TESTS = "tests"
PAGES = (
    "docs/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "benchmarks/RESULTS.md",
    "conf/**/*.yaml",
)
OPENERS = re.compile(
    r"(Of|As|For|Also|Late|What|Whether|Where|Those|That|How|None|Without|In|On|From)\b"
)
"""First words that a docstring, including docstrings of tests, does not have."""
WORDS = {
    r"\brefus(e|es|ed|ing|als?)\b": "reject, raise",
    r"\bto the bit\b": "bit-exact, bitwise identical",
    r"\bis no (number|folder|list|text|file|flag)\b": "is not a ...",
    r"\bare no (overrides|resources|tracebacks|numbers)\b": "are not ...",
    r"\b(fifths|thirds) of\b": "a percentage",
    r"\bdraws? (its |the )?weights\b": "initialize",
    r"\bwhole tensors?\b": "full tensor",
    r"\bbit by bit\b": "bitwise",
    r"\bone sentence (for|on|with) ": "one message",
    r"\b[Nn]o faults\b": "no errors",
    r"\bfirst weights\b": "initial weights",
    r"\bgoes on\b": "resumes",
    r"\bsays of\b|\bknows of\b": "records, contains",
    r"\b(that|those) of\b": "the noun again",
    r"\bthe ones? that\b": "the noun again",
}
"""Patterns, and the field's words to use in their place."""
PAGE_WORDS = {
    r"\bbit (by|for) bit\b": "bit-exact, bitwise identical",
}
"""Further patterns for pages and comments of the configuration."""
SPANS = re.compile(r"`[^`]*`|\]\([^)]*\)|<[^>]*>")
"""Parts of a page in which a colon or semicolon separates no clauses."""
LONGEST = 200
"""Columns of a line of a page outside tables and code."""
EXCEPTIONS = ("words: ok",)
"""Texts whose lines are not checked: the output of `runs replay`."""


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, of attributes too."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text.strip()


def problems() -> Iterator[str]:
    """Yield a line for each broken rule: the place, the text and what to write."""
    code = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    for path in [*code, *sorted((ROOT / TESTS).rglob("*.py"))]:
        for line, text in docstrings(ast.parse(path.read_text())):
            if match := OPENERS.match(text):
                yield (
                    f"{path.relative_to(ROOT)}:{line}: begins with {match[0]!r}: begin with a verb"
                    " or a noun phrase"
                )
            if path in code and "; None" in " ".join(text.partition("\n\n")[0].split()):
                yield f"{path.relative_to(ROOT)}:{line}: '; None': write 'or None if ...'"
    this_file = Path(__file__).resolve()
    pages = [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]
    for path in [*code, *pages]:
        words = WORDS if path.suffix == ".py" else WORDS | PAGE_WORDS
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if path == this_file or any(exception in text for exception in EXCEPTIONS):
                continue
            for pattern, better in words.items():
                if match := re.search(pattern, text):
                    yield f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: write {better}"
    for path in pages:
        for number, text in prose(path):
            if len(text) > LONGEST:
                yield f"{path.relative_to(ROOT)}:{number}: {len(text)} columns, more than {LONGEST}"
            for sentence in re.split(r"(?<=[.?!])\s+", SPANS.sub("", text)):
                if len(re.findall(r"[;:](?=\s|$)", sentence)) > 1:
                    yield (
                        f"{path.relative_to(ROOT)}:{number}: several colons or semicolons in a"
                        f" sentence: {sentence.strip()!r}"
                    )


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a page outside tables and code."""
    is_code = path.suffix != ".md"
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if text.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not text.startswith("|"):
            yield number, text


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))
