"""One job as a process of its own: `python -m launcher.cli.job FILE [RESULT]`.

FILE has a checked and resolved configuration; RESULT gets the value that the job returns. When the
command that launched it ends, the job saves and ends too.
"""

import json
import sys
from pathlib import Path

from launcher.dispatch.rank import begin_as_child
from launcher.process import exits


def main() -> None:
    begin_as_child()
    try:
        value = run(Path(sys.argv[1]))
        for result in sys.argv[2:]:
            Path(result).write_text(json.dumps(value, default=str))
    finally:
        exits.begin_exit()


def run(file: Path) -> object:
    """Run the job of a file; return what it returns, or raise a SystemExit."""
    from launcher.cli.start import start
    from launcher.config.run_config import load_job

    return start(load_job(file))


if __name__ == "__main__":
    main()
