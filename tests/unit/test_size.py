"""`make size` counts code, not prose."""

from benchmarks.size import measure

TEXT = '''"""Docstring."""


def compared(one, other):
    """Compare.

    In two lines.
    """
    if one and other or one:  # a comment
        return one
    return (
        other
    )
'''


def test_docstrings_and_comments_are_not_code():
    counts = measure(TEXT)
    assert (counts["lines"], counts["code"], counts["functions"]) == (13, 6, 1)
    assert (counts["participles"], counts["decisions"], counts["tokens"]) == (1, 3, 21)
