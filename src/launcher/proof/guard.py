"""Find out whether the code here trains as another commit's: `python -m launcher.guard`.

Each preset is trained for some steps with both codes, in scratch folders, and everything that the
steps read and compute is compared bitwise. No run is written.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from launcher.errors import REJECTED, ConfigError
from launcher.process import signals
from launcher.process.argument_parser import Parser
from launcher.proof import commits
from launcher.proof.code_copy import Code, copy_commit, working_tree
from launcher.proof.guard_bisect import GuardBisect
from launcher.proof.guard_file import FILE, STEPS, EqualPresets, read_file
from launcher.proof.guard_lock import LOCK, GuardLock
from launcher.proof.side import Preset, new_folder, stop_all, train
from launcher.proof.two_codes import DIFFERENT, IDENTICAL, Verdict, compare_codes, judge_all


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
    parser.argument("--steps", "N", f"optimizer steps to train (default: {STEPS})", type=int)
    parser.argument(
        "--against",
        "REF",
        "the other commit (default: the last one in common with the default branch)",
    )
    parser.argument("--parallel", "N", "presets at a time (default: 1)", type=int, default=1)
    parser.flag("--write", f"write the digest of each preset to {LOCK}")
    parser.flag("--locked", f"compare with {LOCK} in place of another commit")
    parser.argument(
        "--bisect",
        "REF",
        "GOOD [BAD]: find the first commit after GOOD that trains otherwise",
        nargs="+",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    # A signal stops the trainings, and what is done between them is short. So no signal interrupts
    # the removal of the folder, or comes between the start of a training and the note of it.
    before = signals.install()
    signals.on_first(lambda _: stop_all())
    guard: Guard | None = None
    code = REJECTED
    try:
        arguments = build_parser().parse_intermixed_args(argv)
        _check(arguments)
        with tempfile.TemporaryDirectory(prefix="launcher-guard-") as folder:
            guard = Guard(arguments, Path(folder))
            code = guard.run()
    # An error may be the signal's, such as that of a git that it has ended.
    except (ConfigError, KeyboardInterrupt) as error:
        if not signals.first_signal():
            print(*getattr(error, "messages", ()), sep="\n", file=sys.stderr)
    finally:
        signals.restore(before)
    if not (signum := signals.first_signal()):
        return code
    reached = guard.bisection.reached if guard is not None and guard.bisection is not None else None
    rest = f" To go on: --bisect {reached[0][:12]} {reached[1][:12]}" if reached else ""
    print(f"Interrupted; nothing is left behind.{rest}", file=sys.stderr)
    return 128 + signum


def _check(arguments: argparse.Namespace) -> None:
    for option in ("steps", "parallel"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise ConfigError(f"--{option}={value}: must be at least 1.")
    chosen = [name for name in ("against", "write", "locked", "bisect") if getattr(arguments, name)]
    if len(chosen) > 1:
        raise ConfigError(f"--{chosen[0]} and --{chosen[1]} exclude each other.")
    if arguments.bisect and len(arguments.bisect) > 2:
        raise ConfigError(
            f"--bisect {' '.join(arguments.bisect)}: takes a good commit, and perhaps a bad one;"
            " overrides come before it."
        )


class Guard:
    """One command.

    Args:
        arguments: of the command.
        root: a folder for everything that it writes.
    """

    def __init__(self, arguments: argparse.Namespace, root: Path):
        self.arguments, self.root = arguments, root
        self.bisection: GuardBisect | None = None
        words, steps = tuple(arguments.overrides), arguments.steps
        self.equal: list[EqualPresets] = []
        if words:
            self.presets = [Preset(" ".join(words), words, steps or STEPS)]
        else:
            self.presets, self.equal = read_file(steps)

    def run(self) -> int:
        """Do what the options say; return the exit code."""
        if self.arguments.write or self.arguments.locked:
            lock = GuardLock(self.root, self.arguments.write)
            codes = [verdict.code for verdict in self._print(judge_all(lock.judge, self.presets))]
            if self.arguments.write:
                lock.write()
            return _worst(codes)
        here = working_tree()
        if self.arguments.bisect:
            self.bisection = GuardBisect(here, self.arguments.bisect, self.root)
            found = judge_all(self.bisection.find, self.presets)
            return _worst(verdict.code for verdict in self._print(found))
        return self._compare(here)

    def _compare(self, here: Code) -> int:
        """Compare with the other commit, and presets with each other; return the exit code."""
        base = commits.base_or(here.root, self.arguments.against, "--against")
        name = commits.describe(here.root, base)
        if commits.is_equal_tree(here.root, base):
            print(f"Nothing to compare: the tracked files equal {name}.", flush=True)
            if not self.equal:
                return IDENTICAL
            old = None
        else:
            print(f"Against {name}.", file=sys.stderr, flush=True)
            old = copy_commit(here, base, self.root / "base")

        def judge(preset: Preset) -> Verdict:
            if old is not None:
                return compare_codes(old, here, preset, self.root)
            side = train(here, preset, new_folder(self.root))
            return Verdict(preset, f"trained {side.end} steps.", IDENTICAL, side)

        verdicts = list(self._print(judge_all(judge, self.presets, self.arguments.parallel)))
        codes = [verdict.code for verdict in verdicts]
        return _worst([*codes, *(self._agree(equal, verdicts) for equal in self.equal)])

    def _print(self, verdicts: Iterator[Verdict]) -> Iterator[Verdict]:
        """Print a line for each preset, as soon as it is known."""
        for verdict in verdicts:
            print(f"{verdict.preset.name}: {verdict.text}", flush=True)
            for line in verdict.details:
                print(f"  {line}", flush=True)
            yield verdict

    def _agree(self, equal: EqualPresets, verdicts: Sequence[Verdict]) -> int:
        """Compare presets with each other; print a line, and return the exit code."""
        sides = {verdict.preset.name: verdict.side for verdict in verdicts}
        chosen = [side for name in equal.names if (side := sides[name]) is not None]
        names = ", ".join(equal.names)
        if len(chosen) < len(equal.names):
            print(f"{names}: not compared, since one of them was not trained.")
            return REJECTED
        problem = equal.disagreement(chosen)
        how = "equal" if equal.close is None else f"close ({equal.close:g})"
        print(f"{names}: {problem or f'{how}.'}", flush=True)
        return DIFFERENT if problem else IDENTICAL


def _worst(codes: Iterable[int]) -> int:
    """Return the exit code of several outcomes: a difference is reported in any case."""
    found = list(codes)
    return DIFFERENT if DIFFERENT in found else max(found, default=IDENTICAL)
