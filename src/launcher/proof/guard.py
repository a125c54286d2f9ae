"""Find out whether the code here trains as another commit's: `python -m launcher.guard`.

Each preset is trained for some steps with both codes, in scratch folders, and everything that the
steps read and compute is compared bitwise. No run is written.
"""

import sys
import tempfile
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from launcher.errors import REJECTED, ConfigError
from launcher.process import signals
from launcher.process.argument_parser import Parser
from launcher.proof import commits
from launcher.proof.code_copy import copy_commit, working_tree
from launcher.proof.guard_bisect import GuardBisect
from launcher.proof.guard_file import FILE, STEPS, EqualPresets, read_file
from launcher.proof.guard_lock import LOCK, GuardLock
from launcher.proof.side import Preset, stop_all
from launcher.proof.two_codes import (
    DIFFERENT,
    IDENTICAL,
    Verdict,
    compare_codes,
    judge_all,
    train_only,
)


def build_parser() -> Parser:
    parser = Parser(
        prog="python -m launcher.guard",
        description="Find out whether the code here trains as the code of another commit.",
        epilog=(
            f"Without overrides, the presets of {FILE}. Exit codes: 0 identical, 1 different, 2"
            f" cannot be compared, 3 {LOCK} has no line for this kind of machine."
        ),
    )
    parser.argument("overrides", "OVERRIDE", "of the command line: experiment=first", nargs="*")
    parser.argument("--steps", "N", f"optimizer steps to train (default: {STEPS})", type=_count)
    parser.argument("--parallel", "N", "presets at a time (default: 1)", type=_count, default=1)
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--against",
        metavar="REF",
        help="the other commit (default: the last one in common with the default branch)",
    )
    text = "GOOD [BAD]: find the first commit after GOOD that trains otherwise"
    other.add_argument("--bisect", metavar="REF", help=text, nargs="+")
    text = f"write the digest of each preset to {LOCK}"
    other.add_argument("--write", help=text, action="store_true")
    text = f"compare with {LOCK} in place of another commit"
    other.add_argument("--locked", help=text, action="store_true")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text} is less than 1, or not a number")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    # A signal stops the trainings, and what is done between them is short. So no signal interrupts
    # the removal of the folder, or comes between the start of a training and the note of it.
    before = signals.install()
    signals.on_first(lambda _: stop_all())
    try:
        arguments = build_parser().parse_intermixed_args(argv)
        with tempfile.TemporaryDirectory(prefix="launcher-guard-") as folder:
            code = run(arguments, Path(folder))
    except KeyboardInterrupt:
        pass
    except ConfigError as error:
        code = REJECTED
        # The error may be that a signal has ended git.
        if not signals.first_signal():
            print(*error.messages, sep="\n", file=sys.stderr)
    finally:
        signals.restore(before)
    signum = signals.first_signal()
    if signum:
        print("Interrupted; nothing is left behind.", file=sys.stderr)
        return 128 + signum
    return code


def run(arguments: Namespace, root: Path) -> int:
    """Do what the options say, with all files below `root`; return the exit code."""
    words = tuple(arguments.overrides)
    equal = list[EqualPresets]()
    if words:
        presets = [Preset(" ".join(words), words, arguments.steps or STEPS)]
    else:
        presets, equal = read_file(arguments.steps)
    if arguments.write or arguments.locked:
        lock = GuardLock(root, arguments.write)
        verdicts = _print(judge_all(lock.judge, presets, arguments.parallel))
        if arguments.write:
            lock.write()
    elif arguments.bisect:
        bisection = GuardBisect(working_tree(), arguments.bisect, root)
        verdicts = _print(judge_all(bisection.find, presets))
    else:
        judge = _judge(arguments.against, root, has_equal=bool(equal))
        verdicts = _print(judge_all(judge, presets, arguments.parallel)) if judge else []
    codes = [verdict.code for verdict in verdicts]
    if not (arguments.write or arguments.locked or arguments.bisect):
        codes += [_agree(each, verdicts) for each in equal]
    if DIFFERENT in codes:
        return DIFFERENT
    return max(codes, default=IDENTICAL)


def _judge(against: str | None, root: Path, has_equal: bool) -> Callable[[Preset], Verdict] | None:
    """Return what compares a preset with the other commit, or None if there is nothing to compare.

    Presets that must agree with each other are trained in any case.
    """
    here = working_tree()
    base = commits.base_or(here.root, against, "--against")
    name = commits.describe(here.root, base)
    if not commits.is_equal_tree(here.root, base):
        print(f"Against {name}.", file=sys.stderr, flush=True)
        old = copy_commit(here, base, root / "base")
        return lambda preset: compare_codes(old, here, preset, root)
    print(f"Nothing to compare: the tracked files equal {name}.", flush=True)
    if has_equal:
        return lambda preset: train_only(here, preset, root)
    return None


def _print(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Print a line for each preset as soon as it is known, and return all."""
    known = []
    for verdict in verdicts:
        print(f"{verdict.preset.name}: {verdict.text}", flush=True)
        for line in verdict.details:
            print(f"  {line}", flush=True)
        known.append(verdict)
    return known


def _agree(equal: EqualPresets, verdicts: Sequence[Verdict]) -> int:
    """Compare presets with each other; print a line, and return the exit code."""
    sides = {verdict.preset.name: verdict.side for verdict in verdicts}
    chosen = [side for name in equal.names if (side := sides[name]) is not None]
    names = ", ".join(equal.names)
    if len(chosen) < len(equal.names):
        print(f"{names}: not compared, since one of them was not trained.")
        return REJECTED
    problem = equal.disagreement(chosen)
    agreement = "equal." if equal.close is None else f"close ({equal.close:g})."
    print(f"{names}: {problem or agreement}", flush=True)
    return DIFFERENT if problem else IDENTICAL
