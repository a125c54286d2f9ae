"""The command line of `python -m launcher.runs`. Each verb is a module, imported on use."""

import sys

from launcher.process import import_path

if __name__ == "__main__":
    import_path.leave_out_run_folder()

import argparse
import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launcher.config.messages import closest_name
from launcher.errors import REJECTED, ConfigError
from launcher.process.argument_parser import Parser, path_argument
from launcher.process.printable import printable_output
from launcher.rundir.logs import ending_with_reader, prepare_output
from launcher.runs.act import repeat_command
from launcher.runs.filters import is_condition
from launcher.runs.find_runs import RUN_HELP

VERBS = {
    "list": "launcher.runs.look.listing",
    "watch": "launcher.runs.look.watch",
    "show": "launcher.runs.look.show",
    "logs": "launcher.runs.look.logs",
    **dict.fromkeys(repeat_command.VERBS, "launcher.runs.act.repeat_command"),
    "fork": "launcher.runs.act.fork",
    "rollback": "launcher.runs.act.rollback",
    "cancel": "launcher.runs.act.cancel",
    "retry": "launcher.runs.act.retry",
    "compare": "launcher.runs.look.compare",
    "plot": "launcher.runs.look.plot",
    "report": "launcher.runs.look.report",
    "sync": "launcher.runs.act.sync",
    "checkpoints": "launcher.runs.act.checkpoints",
    "adopt": "launcher.runs.act.adopt",
    "replay": "launcher.proof.replay",
    "claim": "launcher.proof.claim",
    "check": "launcher.proof.check_claim",
    "test": "launcher.runs.look.significance",
    "reproduce": "launcher.runs.look.reproduce",
}
"""Modules of the verbs, each with `add_arguments` and `run`."""
OUTPUTS = Path("outputs")
PROG = "python -m launcher.runs"
EPILOG = f"A RUN is {RUN_HELP}."


def summary(verb: str) -> str:
    """Return the first line of a verb's module, without importing it: some imports take long."""
    if verb in repeat_command.VERBS:
        return repeat_command.VERBS[verb]
    spec: Any = find_spec(VERBS[verb])
    return str(spec.loader.get_source(spec.name)).partition("\n")[0].strip('"')


def build_parser() -> Parser:
    """Make the parser that lists the verbs; each has a `verb_parser` for its own arguments."""
    parser = Parser(
        prog=PROG,
        description="Look at runs and act on them. Without a verb: list.",
        epilog=EPILOG,
    )
    add_outputs(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    for name in VERBS:
        verbs.add_parser(name, help=summary(name))
    return parser


def verb_parser(verb: str) -> Parser:
    parser = Parser(prog=f"{PROG} {verb}", description=summary(verb), epilog=EPILOG)
    add_outputs(parser)
    import_module(VERBS[verb]).add_arguments(parser)
    return parser


def add_outputs(parser: Parser) -> None:
    parser.argument(
        "--outputs",
        "DIR",
        "the folder of the runs (default: outputs)",
        type=path_argument,
        default=OUTPUTS,
    )


def split_words(words: Sequence[str]) -> tuple[Path, list[str], list[str]]:
    """Take `--outputs` out of a command line, wherever it is.

    Returns:
        The folder, the words before `--` with the verb first (`list` if there is none), and the
            words after it.
    """
    outputs = Parser(prog=PROG, add_help=False, allow_abbrev=False)
    add_outputs(outputs)
    end = words.index("--") if "--" in words else len(words)
    options, rest = outputs.parse_known_args(words[:end])
    options, after = outputs.parse_known_args(words[end + 1 :], options)
    first = rest[0] if rest else "list"
    if first in VERBS:
        return options.outputs, [first, *rest[1:]], after
    if first.startswith("-") or is_condition(first):
        return options.outputs, ["list", *rest], after
    raise ConfigError(f"'{first}': is not a verb ({', '.join(VERBS)}); {suggest(first)}")


def suggest(word: str) -> str:
    if os.path.isdir(word):
        return f"for the runs of a folder write --outputs={word}."
    near = closest_name(word, VERBS)
    if near:
        return f"did you mean {near}?"
    return f"for a run write `show {word}` or `list {word}`."


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; options, runs, filters and overrides come in any order."""
    if words and words[0] in ("-h", "--help"):
        # Help ends the process.
        build_parser().parse_args(words)
    outputs, (verb, *rest), after = split_words(words)
    if verb not in repeat_command.VERBS:
        rest = [*rest, *after]
        after = []
    parsed = verb_parser(verb).parse_intermixed_args(rest)
    parsed.verb = verb
    parsed.after = after
    parsed.outputs = outputs
    # The default folder may be missing: its first run is still to come.
    if parsed.outputs != OUTPUTS and not os.path.isdir(parsed.outputs):
        raise ConfigError(f"--outputs={parsed.outputs}: there is no such folder.")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code: 0, 1 for a failure, or 2 for a wrong command line."""
    prepare_output()
    with printable_output():
        return _run(sys.argv[1:] if arguments is None else arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        with ending_with_reader():
            import_path.current_folder()
            parsed = parse(arguments)
            code: int = import_module(VERBS[parsed.verb]).run(parsed)
        return code
    except ConfigError as error:
        print(*error.messages, sep="\n", file=sys.stderr)
        return REJECTED
    except OSError as error:
        if error.filename is None:
            raise
        print(f"{error.filename}: {error.strerror}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
