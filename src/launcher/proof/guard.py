"""Find out whether the code here trains as another commit's: `python -m launcher.guard`.

Each preset is trained for some steps with both codes, in scratch folders, and everything that the
steps read and compute is compared bitwise. No run is written.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from launcher.errors import REJECTED, ConfigError
from launcher.process.argument_parser import Parser, path_argument
from launcher.process.waits import wait_for_future
from launcher.proof import commits
from launcher.proof.code_copy import Code, copy_commit, working_tree
from launcher.proof.guard_bisect import GuardBisect
from launcher.proof.guard_file import FILE, STEPS, EqualPresets, read_file
from launcher.proof.guard_lock import LOCK, GuardLock
from launcher.proof.side import NotTrained, Preset, new_folder, stop_all, train
from launcher.proof.two_codes import DIFFERENT, IDENTICAL, Verdict, compare_codes

INTERRUPTED = 130


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
    parser.argument("--config-dir -cd", "DIR", "a folder of options", type=path_argument)
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
    try:
        arguments = build_parser().parse_intermixed_args(argv)
        _check(arguments)
        with tempfile.TemporaryDirectory(prefix="launcher-guard-") as folder:
            return Guard(arguments, Path(folder)).run()
    except ConfigError as error:
        print(*error.messages, sep="\n", file=sys.stderr)
        return REJECTED
    except commits.Interrupted as reached:
        rest = f"--bisect {reached.good[:12]} {reached.bad[:12]}"
        print(f"Interrupted; nothing is left behind. To go on: {rest}", file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt:
        print("Interrupted; nothing is left behind.", file=sys.stderr)
        return INTERRUPTED


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
        self.presets: tuple[Preset, ...]
        self.equal: tuple[EqualPresets, ...] = ()
        if arguments.overrides:
            steps = arguments.steps or STEPS
            words = tuple(arguments.overrides)
            self.presets = (Preset(" ".join(words), words, steps, arguments.config_dir),)
        else:
            file = read_file(arguments.steps, arguments.config_dir)
            self.presets, self.equal = file.presets, file.equal

    def run(self) -> int:
        """Do what the options say; return the exit code."""
        if self.arguments.write or self.arguments.locked:
            lock = GuardLock(self.root, self.arguments.write)
            verdicts = list(self._each(lock.judge))
            if self.arguments.write:
                lock.write()
            return _worst(verdict.code for verdict in verdicts)
        here = working_tree()
        if self.arguments.bisect:
            bisection = GuardBisect(here, self.arguments.bisect, self.root)
            # In this thread, so that an interruption knows how far it was.
            return _worst(self._print(bisection.find(preset)) for preset in self.presets)
        return self._compare(here)

    def _compare(self, here: Code) -> int:
        """Compare with the other commit, and presets with each other; return the exit code."""
        base = commits.base_or(here.root, self.arguments.against, "--against")
        name = commits.describe(here.root, base)
        if not commits.is_equal_tree(here.root, base):
            print(f"Against {name}.", file=sys.stderr, flush=True)
            old = copy_commit(here, base, self.root / "base")
            verdicts = list(self._each(lambda preset: compare_codes(old, here, preset, self.root)))
        else:
            print(f"Nothing to compare: the tracked files equal {name}.", flush=True)
            judge = partial(self._train, here)
            verdicts = list(self._each(judge)) if self.equal else []
        codes = [verdict.code for verdict in verdicts]
        codes += [self._agree(equal, verdicts) for equal in self.equal]
        return _worst(codes)

    def _train(self, here: Code, preset: Preset) -> Verdict:
        """Train a preset with the code here, to compare it with other presets."""
        try:
            side = train(here, preset, new_folder(self.root))
        except NotTrained as error:
            return Verdict(preset, f"cannot be trained: {error}", REJECTED)
        return Verdict(preset, f"trained {side.end} steps.", IDENTICAL, side)

    def _each(self, judge: Callable[[Preset], Verdict]) -> Iterator[Verdict]:
        """Judge the presets, some at a time, and print a line for each in their order."""
        with ThreadPoolExecutor(self.arguments.parallel) as pool:
            try:
                for future in [pool.submit(judge, preset) for preset in self.presets]:
                    verdict = wait_for_future(future)
                    self._print(verdict)
                    yield verdict
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                stop_all()
                raise

    def _print(self, verdict: Verdict) -> int:
        """Print what is found about a preset; return the exit code."""
        print(f"{verdict.preset.name}: {verdict.text}", flush=True)
        for line in verdict.details:
            print(f"  {line}", flush=True)
        return verdict.code

    def _agree(self, equal: EqualPresets, verdicts: Sequence[Verdict]) -> int:
        """Compare presets with each other; print a line, and return the exit code."""
        from launcher.proof.equal_presets import disagreement  # late: torch

        sides = {verdict.preset.name: verdict.side for verdict in verdicts}
        chosen = [side for name in equal.names if (side := sides[name]) is not None]
        names = ", ".join(equal.names)
        if len(chosen) < len(equal.names):
            print(f"{names}: not compared, since one of them was not trained.")
            return REJECTED
        problem = disagreement(equal, chosen)
        how = "equal" if equal.close is None else f"close ({equal.close:g})"
        text = problem or f"{how}."
        print(f"{names}: {text}", flush=True)
        return DIFFERENT if problem else IDENTICAL


def _worst(codes: Iterable[int]) -> int:
    """Return the exit code of several outcomes: a difference is reported in any case."""
    found = list(codes)
    return DIFFERENT if DIFFERENT in found else max(found, default=IDENTICAL)
