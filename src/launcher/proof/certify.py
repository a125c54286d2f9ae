"""Find out whether any training command resumes: `python -m launcher.certify -- python train.py`.

The command is trained to its end, then again with a stop and a second launch, each in an empty
folder. The losses that it prints are compared step by step. It may use any library; it only has to
print its step and its loss.
"""

import argparse
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from launcher.errors import REJECTED, ConfigError
from launcher.process.argument_parser import Parser
from launcher.process.import_path import current_folder
from launcher.process.plural import plural

LOSS = r"loss['\"]?[=: ]+['\"]?(-?(?:[0-9.]+(?:e[+-]?\d+)?|inf)|nan)"
STEP = r"step['\"]?[=: ]+['\"]?([0-9.]+)"
FOLDER_PLACEHOLDER = "{dir}"
LAST_LINES = 8
EXACT = "exact"
CLOSE = "close"
CLOSE_TOLERANCE = 0.01
"""Largest relative difference of losses that count as close."""


def build_parser() -> Parser:
    parser = Parser(
        prog="python -m launcher.certify",
        description="Find out whether a training command resumes with the same losses.",
        epilog=(
            "The command runs in an empty folder each time; {dir} in its arguments is that folder."
            " Exit codes: 0 exact, 1 anything else, 2 the command cannot be checked."
        ),
    )
    text = "where a line has the {} (default: {})"
    parser.argument("--loss", "REGEX", text.format("loss", LOSS), type=pattern, default=LOSS)
    parser.argument("--step", "REGEX", text.format("step", STEP), type=pattern, default=STEP)
    parser.argument("--at", "STEP", "stop after this step (default: half-way)", type=float)
    parser.flag("--kill", "stop with SIGKILL, not with SIGTERM")
    parser.argument(
        "--resume-args", "ARGS", "added to the command when it starts again", default=""
    )
    parser.argument(
        "--grace", "SECONDS", "to save and exit (default: 60)", type=float, default=60.0
    )
    parser.argument("command", "COMMAND", "after --", nargs="+")
    return parser


def pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression in an argument, for argparse."""
    try:
        compiled = re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text} is not a regular expression ({error})") from error
    if not compiled.groups:
        raise argparse.ArgumentTypeError(f"{text} needs a group around the number: ([0-9.]+)")
    return compiled


def main(argv: Sequence[str] | None = None) -> int:
    try:
        arguments = build_parser().parse_args(argv)
        current_folder()
        with tempfile.TemporaryDirectory(prefix="launcher-certify-") as folder:
            findings = certify(arguments, Path(folder))
    except ConfigError as error:
        print(*error.messages, sep="\n", file=sys.stderr)
        return REJECTED
    except KeyboardInterrupt:
        return 130
    verdict = next((finding.verdict for finding in findings if finding.verdict), EXACT)
    print(f"Verdict: {verdict}", *(f"  {finding.text}" for finding in findings), sep="\n")
    return int(verdict != EXACT)


def read(line: str, arguments: argparse.Namespace) -> tuple[float, float] | None:
    """Return the step and the loss of a line, or None without both."""
    step = arguments.step.search(line)
    loss = arguments.loss.search(line)
    try:
        if step is None or loss is None:
            return None
        return (float(step[1]), float(loss[1]))
    except ValueError:
        return None


@dataclass
class Launch:
    """Output of one launch of the command, and its end.

    Args:
        losses: the loss of each step.
        code: the exit code; negative for a signal.
        lines: the last lines of the output.
        seconds: time from the signal to the end, or None if no signal was sent.
        was_killed: whether it had to be killed after the grace period.
    """

    losses: dict[float, float] = field(default_factory=dict)
    code: int = 0
    lines: list[str] = field(default_factory=list)
    seconds: float | None = None
    was_killed: bool = False


class Finding(NamedTuple):
    """A message of the report, and the verdict that it leads to, if any."""

    text: str
    verdict: str = ""


def certify(arguments: argparse.Namespace, folder: Path) -> list[Finding]:
    """Train straight, to a stop, and from the stop to the end, and compare the losses."""
    command = arguments.command
    say("Training straight.")
    straight = launch(command, folder / "straight", arguments)
    if straight.code:
        raise ConfigError(f"The command ended with exit code {straight.code}:", *straight.lines)
    steps = sorted(straight.losses)
    if len(steps) < 3:
        raise ConfigError(
            f"{plural(len(steps), 'line')} of the output have a step"
            f" (--step={arguments.step.pattern}) and a loss"
            f" (--loss={arguments.loss.pattern}), and 3 are needed:",
            *straight.lines,
        )
    at = steps[len(steps) // 2 - 1] if arguments.at is None else arguments.at
    if at >= steps[-1]:
        raise ConfigError(f"--at={at:g}: must be before the last step, {steps[-1]:g}.")
    say(f"Training again, with {'SIGKILL' if arguments.kill else 'SIGTERM'} after step {at:g}.")
    first = launch(command, folder / "stopped", arguments, at)
    if first.seconds is None:
        raise ConfigError(
            f"The command ended before it printed step {at:g}; its exit code was {first.code}."
        )
    say("Starting it again.")
    again = [*command, *shlex.split(arguments.resume_args)]
    second = launch(again, folder / "stopped", arguments)
    return [
        *findings_at_stop(straight, first, arguments),
        *findings_of_resume(straight, first, second),
    ]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def launch(
    command: Sequence[str], folder: Path, arguments: argparse.Namespace, at: float | None = None
) -> Launch:
    """Run the command in a folder to its end, or stop it once it has printed the step `at`."""
    folder.mkdir(exist_ok=True)
    process = start(command, folder)
    result = Launch()
    sent = 0.0
    too_late = Killer(process.pid, arguments.grace)
    try:
        for line in output_of(process):
            result.lines = [*result.lines, line][-LAST_LINES:]
            reading = read(line, arguments)
            if reading is None:
                continue
            step, result.losses[step] = reading
            if at is not None and step >= at and not sent:
                sent = time.monotonic()
                if arguments.kill:
                    kill(process.pid)
                else:
                    process.send_signal(signal.SIGTERM)
                    too_late.start()
        result.code = process.wait()
    finally:
        too_late.cancel()
        kill(process.pid)
        process.wait()
    result.seconds = time.monotonic() - sent if sent else None
    result.was_killed = too_late.has_killed
    return result


def start(command: Sequence[str], folder: Path) -> "subprocess.Popen[bytes]":
    """Start the command in its folder, as the leader of a group of processes."""
    argv = [locate(word).replace(FOLDER_PLACEHOLDER, str(folder)) for word in command]
    paths = [current_folder(), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}
    try:
        return subprocess.Popen(
            argv,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(f"{argv[0]}: cannot be started ({error.strerror}).") from error


class Killer(threading.Timer):
    """Kills a group of processes after some seconds, unless it is cancelled."""

    def __init__(self, group: int, seconds: float):
        super().__init__(seconds, self._kill)
        self.group = group
        self.has_killed = False

    def _kill(self) -> None:
        self.has_killed = True
        kill(self.group)


def kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def locate(word: str) -> str:
    """Return an argument with the full path of a file or folder that it names."""
    path = Path(word)
    is_relative = not path.is_absolute() and not word.startswith("-") and path.exists()
    return str(path.absolute()) if is_relative else word


def output_of(process: "subprocess.Popen[bytes]") -> Iterator[str]:
    """Yield the lines of the output; a progress bar's carriage returns end lines too."""
    assert process.stdout is not None
    for raw in process.stdout:
        yield from (line for line in re.split(r"[\r\n]+", raw.decode(errors="replace")) if line)


def findings_at_stop(
    straight: Launch, first: Launch, arguments: argparse.Namespace
) -> Iterator[Finding]:
    how = f"SIGTERM, after which it ended in {first.seconds or 0.0:.1f} s"
    yield Finding(
        f"Stopped at step {max(first.losses):g} of {max(straight.losses):g} with"
        f" {'SIGKILL' if arguments.kill else how}, exit code {first.code}."
    )
    if first.was_killed:
        text = f"It did not exit within --grace={arguments.grace:g} seconds, and was killed."
        yield Finding(text, "did not exit")
    for step in differing_steps(straight, first)[:1]:
        text = f"Before the stop, the loss of step {step:g} is another in two equal starts."
        yield Finding(text, "does not repeat")


def findings_of_resume(straight: Launch, first: Launch, second: Launch) -> Iterator[Finding]:
    begin = min(second.losses, default=None)
    if begin is None:
        text = f"The second start printed no loss; its exit code was {second.code}."
        yield Finding(text, "did not resume")
        yield from map(Finding, second.lines)
        return
    if begin <= min(straight.losses) < max(first.losses):
        text = f"The second start begins with step {begin:g} again: nothing was saved or restored."
        yield Finding(text, "restarted")
        return
    yield Finding(f"The second start begins with step {begin:g}.")
    missing = straight.losses.keys() - first.losses.keys() - second.losses.keys()
    if missing:
        text = f"{len(missing)} steps were never printed, the first of them {min(missing):g}."
        yield Finding(text, "skipped steps")
    repeated = first.losses.keys() & second.losses.keys()
    if repeated:
        yield Finding(f"It repeats {plural(len(repeated), 'step')}.")
    if second.code:
        yield Finding(f"The second start ended with exit code {second.code}.", "failed")
    steps = differing_steps(straight, second)
    if steps:
        pairs = [(straight.losses[step], second.losses[step]) for step in steps]
        largest = max(relative_difference(*pair) for pair in pairs)
        text = (
            f"{len(steps)} losses differ, the first at step {steps[0]:g}: {pairs[0][1]:g} instead"
            f" of {pairs[0][0]:g}; the largest relative difference is {largest:.2g}."
        )
        yield Finding(text, CLOSE if largest <= CLOSE_TOLERANCE else "other losses")
    else:
        count = len(second.losses.keys() & straight.losses.keys())
        yield Finding(f"All {count} losses after it are equal.")


def differing_steps(one: Launch, other: Launch) -> list[float]:
    """Return the steps of both with different losses. Two NaN are equal."""
    both = sorted(one.losses.keys() & other.losses.keys())
    return [step for step in both if repr(one.losses[step]) != repr(other.losses[step])]


def relative_difference(expected: float, actual: float) -> float:
    distance = abs(actual - expected)
    if math.isnan(distance):
        return math.inf
    return distance / max(abs(expected), 1e-12)
