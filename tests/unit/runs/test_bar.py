"""The progress bar of `checkpoints` and `replay` on a terminal."""

import sys
from pathlib import Path

from launcher.process.printable import printable_output
from launcher.runs.bar import bar
from support.terminal import in_terminal, screen


def work(file: str | int = 1) -> None:
    """Work with a bar, and print.

    Args:
        file: what standard output is.
    """
    with open(file, "w", buffering=1) as sys.stdout, open(2, "w", buffering=1) as sys.stderr:
        advance()


def advance() -> None:
    with printable_output(), bar(3, "mlp-digits/95056543d41c (1 of 2), steps 0 to 3") as shown:
        for step in range(1, 4):
            shown.advance(f"mlp-digits/95056543d41c\x1b[31m, step-{step}")
            print(f"line {step}")


def test_the_bar_fits_a_narrow_terminal_and_shows_no_control_characters_of_a_run() -> None:
    code, printed = in_terminal(work, 40)
    assert code == 0 and "━" in printed and "100%" in printed and "mlp-digits/9505" in printed
    assert "\\x1b[2K" not in printed and "\x1b[31m" not in printed
    assert [line for line in screen(printed, 40) if line] == ["line 1", "line 2", "line 3"]
    assert "\\x1b[31m, step-3" in in_terminal(work, 120)[1]


def test_output_for_a_file_does_not_go_to_the_terminal_with_the_bar(tmp_path: Path) -> None:
    code, printed = in_terminal(lambda: work(str(tmp_path / "file")), 80)
    assert code == 0 and "━" in printed and "line" not in printed
    assert (tmp_path / "file").read_text() == "line 1\nline 2\nline 3\n"
