"""A command on a pseudo-terminal, and the screen that a person would see."""

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Callable

SEQUENCE = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]|\x1b.|[\r\n\b]|[^\x1b\r\n\b]+")


def screen(output: str, width: int) -> list[str]:
    """The lines of a terminal of this width after `output`; it knows no more than cursor up,
    erasing and wrapping."""
    lines, row, column = [""], 0, 0
    for token in SEQUENCE.findall(output):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
        elif token.startswith("\x1b["):
            count = int(re.sub(r"\D", "", token) or 1)
            if token.endswith("A"):
                row = max(0, row - count)
            elif token == "\x1b[2K":
                lines[row] = ""
        elif not token.startswith("\x1b"):
            for character in token:
                if column == width:
                    row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
                lines[row] = (
                    lines[row].ljust(column)[:column] + character + lines[row][column + 1 :]
                )
                column += 1
        lines += [""] * (row + 1 - len(lines))
    return [line.rstrip() for line in lines]


def in_terminal(
    act: Callable[[], None],
    width: int,
    environment: dict[str, str] | None = None,
    type_at: tuple[str, bytes] | None = None,
) -> tuple[int, str]:
    """Run `act` in a fork whose standard streams are a terminal.

    Args:
        type_at: what to type once a text has been printed.
    Returns:
        The exit code and all that was printed.
    """
    pid, terminal = pty.fork()
    if not pid:
        code = 1
        try:
            os.environ.pop("COLUMNS", None)
            os.environ.update({"TERM": "xterm", **(environment or {})})
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
            act()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        finally:
            os._exit(code)
    printed = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux: the terminal's other side is closed
            break
        if not data:
            break
        printed += data
        if type_at is not None and type_at[0].encode() in printed:
            os.write(terminal, type_at[1])
            type_at = None
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), printed.decode(errors="replace").replace(
        "\r\n", "\n\r"
    )
