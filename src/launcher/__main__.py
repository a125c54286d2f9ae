"""`python -m launcher`, and the `launcher` script.

Signal handlers are installed before anything slow is imported.
"""

import os
import signal
import sys

from launcher.process import collector, exits, signals
from launcher.rundir.logs import prepare_output


def main() -> None:
    """Run the command line in `sys.argv`."""
    signals.install()
    prepare_output()
    collector.pause()
    # As under `python -m`: a package in the current folder can be a `_target_`.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if sys.argv[1:2] == ["init"]:
        from launcher.cli.init import main as init

        return init(sys.argv[2:])
    if sys.argv[1:2] == ["schema"]:
        from launcher.cli.schema import main as schema

        return schema(sys.argv[2:])
    if {"-sc", "--shell-completion"} & {word.partition("=")[0] for word in sys.argv[1:]}:
        from launcher.cli.completion import answer, request_of

        if request := request_of(sys.argv[1:]):
            return print(answer(request), end="")
    if {"-h", "--help"} & set(sys.argv[1:]):
        from launcher.cli.help import print_help

        return print_help()
    if {"-c", "--cfg", "-i", "--info"} & set(sys.argv[1:]):
        # A command that only prints ends when the reader of its output ends.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    from launcher.cli.main import main as run

    try:
        return run()
    finally:
        exits.begin_exit()


if __name__ == "__main__":
    main()
