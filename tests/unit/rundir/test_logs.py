"""Standard streams and log files."""

import logging
import subprocess
import sys

import pytest

from launcher.rundir import logs
from support.terminal import in_terminal

SCRIPT = """
import logging, sys
from pathlib import Path
from launcher.rundir.logs import prepare_output, setup_logging
prepare_output()
with open(sys.argv[1], "w") as file:
    file.write(str(file.fileno()))
    setup_logging(Path(sys.argv[2]))
    logging.getLogger("launcher").info("a line")
    print("printed", flush=True)
"""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path, closed):
    """No file of ours gets the number of a standard stream: what native code prints would go into
    it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = (
        f"'{sys.executable}' '{tmp_path}/script.py' '{tmp_path}/number' '{tmp_path}/log' {closed}"
    )
    assert subprocess.run(["sh", "-c", command], check=False, capture_output=True).returncode == 0
    assert int((tmp_path / "number").read_text()) > 2
    assert (tmp_path / "log").read_text().endswith("INFO    a line\n")


def log_two_levels():
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115 - pytest has put its own in its place
    logs.console.cache_clear()
    logs.setup_logging(None)
    logging.getLogger("launcher").info("all [bold]well[/bold]")
    logging.getLogger("launcher").warning("INFO is not the level")


@pytest.mark.parametrize(
    ("environment", "has_color"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_levels_are_coloured_on_a_terminal(environment, has_color):
    _, output = in_terminal(log_two_levels, 80, environment)
    info, warning = output.replace("\r", "").splitlines()
    start, end = ("\x1b[33m", "\x1b[0m") if has_color else ("", "")
    assert info.endswith("    all [bold]well[/bold]") and "\x1b" not in info
    assert warning.startswith(start) and warning.endswith(f" INFO is not the level{end}")
    assert has_color or "\x1b" not in warning
