"""`python -m launcher`, and the `launcher` script.

Signal handlers are installed before anything slow is imported.
"""

import sys

from launcher.process import import_path

if __name__ == "__main__":
    import_path.leave_out_run_folder()

import signal
from importlib import import_module

from launcher.errors import ConfigError
from launcher.process import collector, signals, times, user_exits
from launcher.rundir.logs import ending_with_reader, prepare_output


def main() -> None:
    """Run the command line in `sys.argv`."""
    signals.install()
    times.note_first_line(import_path.FIRST_LINE)
    prepare_output()
    collector.pause()
    words = sys.argv[1:]
    try:
        # As under `python -m`: a package in the current folder can be a `_target_`.
        import_path.add_current_folder()
        with ending_with_reader():
            if _is_answered(words):
                return
    except ConfigError as error:
        print("\n".join(error.messages), file=sys.stderr)
        raise SystemExit(2) from None
    if {"-c", "--cfg", "-i", "--info"} & set(words):
        # A command that only prints ends when the reader of its output ends.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    from launcher.cli.main import main as run

    try:
        return run()
    finally:
        user_exits.begin_exit()


def _is_answered(words: list[str]) -> bool:
    """Serve a command that needs no Hydra; return whether it is one."""
    if words[:1] in (["init"], ["schema"]):
        import_module(f"launcher.cli.{words[0]}").main(words[1:])
        return True
    if {"-h", "--help"} & set(words):
        from launcher.cli.help import print_help

        print_help(words)
        return True
    return False


if __name__ == "__main__":
    main()
