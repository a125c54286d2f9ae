"""A table in text."""

import pytest

from launcher.process.text_table import TextTable


def test_columns_are_as_wide_as_their_longest_cell():
    table = TextTable(["name", "step"], [["a", "10"], ["bcdefg", "7"]], right=frozenset({1}))
    assert list(table.lines()) == ["name    step", "a         10", "bcdefg     7"]


def test_wide_and_control_characters():
    table = TextTable(["a", "b"], [["\u8a71\u8a71", "x"], ["one\nline", "y"]])
    assert list(table.lines()) == ["a         b", "\u8a71\u8a71      x", "one line  y"]


@pytest.mark.parametrize("width", range(1, 30))
def test_table_is_not_wider_than_the_terminal(width):
    table = TextTable(["name", "differs in"], [["abcdefgh", "optimizer.lr=0.001"]], shrinks=(1, 0))
    lines = list(table.lines(width))
    assert len(lines) == 2 and max(map(len, lines)) <= width
    if width >= 15:
        assert lines[1].startswith("abcdefgh  opti"), "the first of `shrinks` is cut first"


def test_colours():
    table = TextTable(["state"], [["failed"]], styles={(0, 0): "red"})
    assert list(table.lines(colored=True)) == ["\x1b[1mstate \x1b[0m", "\x1b[31mfailed\x1b[0m"]
