"""Standard streams and log files."""

import subprocess
import sys

import pytest

SCRIPT = """
import logging, sys
from pathlib import Path
from launcher.run.logs import prepare_streams, setup_logging
prepare_streams()
with open(sys.argv[1], "w") as file:
    file.write(str(file.fileno()))
    setup_logging(Path(sys.argv[2]))
    logging.getLogger("launcher").info("a line")
    print("printed", flush=True)
"""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path, closed):
    """No file of ours gets the number of a standard stream: what native code prints would go into it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = f"'{sys.executable}' '{tmp_path}/script.py' '{tmp_path}/number' '{tmp_path}/log' {closed}"
    assert subprocess.run(["sh", "-c", command], check=False, capture_output=True).returncode == 0
    assert int((tmp_path / "number").read_text()) > 2
    assert (tmp_path / "log").read_text().endswith("INFO    a line\n")
