"""Output that shows control characters as text.

A terminal would obey the escape sequences in a run folder that comes from somebody else.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

CONTROL = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Colours, and all control characters other than a tab and a newline."""


def printable(text: str, colors: bool = False, returns: bool = False) -> str:
    r"""Return a text with control characters as `\x1b`; `colors` and `returns` keep theirs."""

    def escape(match: re.Match[str]) -> str:
        if (colors and match[1]) or (returns and match[0] == "\r"):
            return match[0]
        return "".join(
            f"\\x{ord(character):02x}" if CONTROL.match(character) else character
            for character in match[0]
        )

    return CONTROL.sub(escape, text)


class Printable:
    """A stream that writes printable text. A terminal gets the colours of our tables."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(printable(text, colors=self._stream.isatty()))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def raw(stream: TextIO) -> TextIO:
    """Return the stream under a printable one, for a display whose texts are made printable."""
    return stream._stream if isinstance(stream, Printable) else stream


@contextmanager
def printable_output() -> Iterator[None]:
    """Make all output to the standard streams printable."""
    streams = [cast(TextIO, Printable(stream)) for stream in (sys.stdout, sys.stderr)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        yield


def encodable(text: str, stream: object) -> bool:
    """Return whether a stream can show a text: an ASCII terminal has no bars."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except UnicodeError:
        return False
    return True
