"""The digests of `guard.lock`: for each preset and kind of machine, what its steps compute."""

import json
from pathlib import Path

from launcher.errors import ConfigError
from launcher.process.files import replace_file
from launcher.process.plural import plural
from launcher.proof.code_copy import Code
from launcher.proof.side import Preset, new_folder, train
from launcher.proof.two_codes import DIFFERENT, IDENTICAL, Verdict

LOCK = Path("guard.lock")
MAX_LOSSES = 3
NOT_LOCKED = 3
"""The exit code of a kind of machine without a line."""


class GuardLock:
    """`guard.lock` in the current folder, and the trainings that are compared with it.

    Args:
        root: a folder for the trainings.
        is_written: write the digests in place of comparing them.
    """

    def __init__(self, root: Path, is_written: bool):
        self.root = root
        self.is_written = is_written
        self.code = Code(Path.cwd(), Path(), "the working tree")
        self.lines = read_lock()

    def judge(self, preset: Preset) -> Verdict:
        """Train a preset and compare it with its line, unless the lines are written."""
        side = train(self.code, preset, new_folder(self.root))
        losses = " ".join(side.losses()[:MAX_LOSSES])
        line = f"{plural(side.end, 'step')}: {side.digest()}, losses {losses}"
        machines = self.lines.setdefault(preset.name, {})
        if self.is_written:
            machines[side.machine] = line
            return Verdict(preset, f"{line} on {side.machine}.", IDENTICAL)
        locked = machines.get(side.machine)
        if locked is None:
            text = f"{LOCK} has no line for {side.machine}; use --against=REF, or --write on it."
            return Verdict(preset, text, NOT_LOCKED)
        if locked == line:
            return Verdict(preset, f"as locked ({line}).", IDENTICAL)
        details = [f"locked: {locked}", f"now: {line}", "--against=REF says where."]
        return Verdict(preset, f"differs from {LOCK}.", DIFFERENT, side, details)

    def write(self) -> None:
        """Write the lines in the order of their names: a meant change is a changed line."""
        text = json.dumps(self.lines, indent=1, sort_keys=True)
        replace_file(LOCK, f"{text}\n".encode())


def read_lock() -> dict[str, dict[str, str]]:
    """Return the lines of `guard.lock`, by preset and machine; none without a file."""
    try:
        content = json.loads(LOCK.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ConfigError(f"{LOCK}: is not a file of guard; remove it, and use --write.")
    return content
