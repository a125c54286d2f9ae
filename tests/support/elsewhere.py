"""`python -m support.elsewhere HOST ...`: the launcher as if it ran on another machine, patient for
a second only."""

import socket
import sys

from launcher.__main__ import main
from launcher.rundir.lock import RunLock

if __name__ == "__main__":
    host = sys.argv.pop(1)
    socket.gethostname = lambda: host
    RunLock.__init__.__kwdefaults__["silence"] = 1.0  # type: ignore[attr-defined]
    main()
