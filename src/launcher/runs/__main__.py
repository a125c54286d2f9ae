"""The command line of `python -m launcher.runs`. Each verb is a module, imported on use."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from launcher.config.messages import nearest
from launcher.errors import ConfigError
from launcher.process.printable import printable_output
from launcher.rundir.files import path_argument
from launcher.rundir.logs import ending_with_reader, prepare_output
from launcher.runs import rerun
from launcher.runs.filters import is_condition
from launcher.runs.find import RUN_HELP

VERBS = (
    "list",
    "watch",
    "show",
    "logs",
    "resume",
    "evaluate",
    "export",
    "predict",
    "fork",
    "rollback",
    "cancel",
    "retry",
    "compare",
    "plot",
    "report",
    "sync",
    "checkpoints",
    "adopt",
    "replay",
    "test",
    "reproduce",
)
"""Verbs. Each is a module with `add_arguments` and `run`."""
MODULES = {
    "list": "listing",
    "test": "significance",
    "replay": "launcher.proof.replay",
} | dict.fromkeys(rerun.VERBS, "rerun")
"""Modules whose name is not the name of their verb."""


OUTPUTS = Path("outputs")
PROG = "python -m launcher.runs"
EPILOG = f"A RUN is {RUN_HELP}."


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one message, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help.")


def module_of(verb: str) -> str:
    module = MODULES.get(verb, verb)
    return module if "." in module else f"launcher.runs.{module}"


def summary(verb: str) -> str:
    """Return the first line of a verb's module, without importing it: some imports take long."""
    if verb in rerun.VERBS:
        return rerun.VERBS[verb]
    spec = find_spec(module_of(verb))
    loader: Any = spec and spec.loader
    return str(loader.get_source(spec.name)).partition("\n")[0].strip('"')  # type: ignore[union-attr]


def build_parser() -> Parser:
    """The parser that lists the verbs; each verb has a `verb_parser` for its own arguments."""
    parser = Parser(
        prog=PROG,
        description="Look at runs and act on them. Without a verb: list.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    add_outputs(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    for name in VERBS:
        verbs.add_parser(name, help=summary(name))
    return parser


def verb_parser(verb: str) -> Parser:
    parser = Parser(prog=f"{PROG} {verb}", description=summary(verb), epilog=EPILOG)
    add_outputs(parser)
    import_module(module_of(verb)).add_arguments(parser)
    return parser


def add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--outputs",
        type=path_argument,
        default=OUTPUTS,
        metavar="DIR",
        help="the folder of the runs (default: outputs)",
    )


def with_verb(arguments: Sequence[str]) -> list[str]:
    """Return the command line with the verb `list` if it has none: `runs`, `runs --json`."""
    outputs, rest = _outputs_first(arguments)
    if rest and (rest[0] in VERBS or rest[0] in ("-h", "--help")):
        return [*outputs, *rest]
    if rest and not rest[0].startswith("-") and not is_condition(rest[0]):
        near = nearest(rest[0], VERBS)
        meant = (
            f"did you mean {near}"
            if near
            else f"for a run write `show {rest[0]}` or `list {rest[0]}`"
        )
        if Path(rest[0]).is_dir():
            meant = f"for the runs of a folder write --outputs={rest[0]}"
        raise ConfigError(
            f"'{rest[0]}': is not a verb ({', '.join(VERBS)}); {meant}{'?' if near else '.'}"
        )
    return [*outputs, "list", *rest]


def _outputs_first(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """`--outputs DIR`, wherever it is, and the other words, the first of which may be a verb."""
    outputs: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for word in remaining:
        if word == "--outputs":
            value = next(remaining, None)
            outputs += [] if value is None else [word, value]
            # Argparse rejects it.
            rest += [word] if value is None else []
        elif word.startswith("--outputs="):
            outputs.append(word)
        else:
            rest.append(word)
    return outputs, rest


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The parsed command line of a verb; options, runs, filters and overrides come in any order."""
    outputs, (verb, *rest) = _outputs_first(words)
    if verb not in VERBS:
        build_parser().parse_args(words)  # --help ends the process
    after: list[str] = []
    if verb in rerun.VERBS and "--" in rest:
        rest, after = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    parsed = verb_parser(verb).parse_intermixed_args([*outputs, *rest])
    parsed.verb, parsed.after = verb, after
    # The default folder may be missing: its first run is still to come.
    if parsed.outputs != OUTPUTS and not parsed.outputs.is_dir():
        raise ConfigError(f"--outputs={parsed.outputs}: there is no such folder.")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code: 0, 1 for a failure, or 2 for a wrong command line."""
    prepare_output()
    with printable_output(), ending_with_reader():
        return _run(sys.argv[1:] if arguments is None else arguments)


def _run(arguments: Sequence[str]) -> int:
    if "--version" in arguments[:1]:
        from importlib.metadata import version

        print(f"torch-launcher {version('torch-launcher')}")
        return 0
    try:
        parsed = parse(with_verb(arguments))
        code: int = import_module(module_of(parsed.verb)).run(parsed)
        return code
    except ConfigError as error:
        print(*error.messages, sep="\n", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        print(f"{error.filename}: {error.strerror}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
