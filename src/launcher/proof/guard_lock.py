"""The digests of `guard.lock`: for each preset and kind of machine, what its steps compute."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from launcher.errors import REJECTED, ConfigError
from launcher.process.files import replace_file
from launcher.proof.code_copy import Code
from launcher.proof.side import NotTrained, Preset, Side, new_folder, train
from launcher.proof.two_codes import DIFFERENT, IDENTICAL, Verdict
from launcher.rundir.provenance import describe_machine

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
        self.root, self.is_written = root, is_written
        self.code = Code(Path.cwd(), Path(), "the working tree")
        self.stored = read_lock()
        self.trained: dict[str, dict[str, Any]] = {}

    def judge(self, preset: Preset) -> Verdict:
        """Train a preset and compare it with its line, unless the lines are written."""
        try:
            side = train(self.code, preset, new_folder(self.root))
        except NotTrained as error:
            return Verdict(preset, f"cannot be trained: {error}", REJECTED)
        machine, entry = machine_of(side), lock_entry(side)
        if self.is_written:
            self.trained[preset.name] = {machine: entry}
            return Verdict(preset, f"{entry['digest']} on {machine}.", IDENTICAL)
        locked = self.stored.get(preset.name, {}).get(machine)
        if locked is None:
            text = f"{LOCK} has no line for {machine}; use --against=REF, or --write on it."
            return Verdict(preset, text, NOT_LOCKED)
        if locked == entry:
            return Verdict(preset, f"as locked ({entry['digest']}).", IDENTICAL)
        return Verdict(preset, f"differs from {LOCK}: {_first_loss(locked, entry)}", DIFFERENT)

    def write(self) -> None:
        """Add the digests to the file, in the order of their names: a change is a changed line."""
        content = self.stored
        for preset, machines in self.trained.items():
            content[preset] = {**content.get(preset, {}), **machines}
        presets = [f" {json.dumps(name)}: {_lines(content[name])}" for name in sorted(content)]
        replace_file(LOCK, ("{\n" + ",\n".join(presets) + "\n}\n").encode())


def _lines(machines: Mapping[str, Any]) -> str:
    lines = [f"  {json.dumps(name)}: {json.dumps(machines[name])}" for name in sorted(machines)]
    return "{\n" + ",\n".join(lines) + "\n }"


def read_lock() -> dict[str, Any]:
    """Return the entries of `guard.lock`, by preset and machine; none without a file."""
    try:
        content = json.loads(LOCK.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(
            f"{LOCK}: cannot be read as JSON ({error}); remove it, and use --write."
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{LOCK}: is not a file of guard; remove it, and use --write.")
    return content


def lock_entry(side: Side) -> dict[str, Any]:
    """Return what `guard.lock` stores of a training."""
    return {"steps": side.end, "digest": side.digest(), "losses": side.losses()[:MAX_LOSSES]}


def machine_of(side: Side) -> str:
    """Describe what decides the last bits of a training: processor, libraries, threads, device."""
    versions = yaml.safe_load((side.last_checkpoint / "code.yaml").read_text())["versions"]
    return f"{describe_machine(side.machine or {})}, torch {versions['torch']}"


def _first_loss(locked: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Return the first loss that differs from the locked ones, or what else does."""
    if locked["steps"] != entry["steps"]:
        return f"{entry['steps']} steps instead of {locked['steps']}."
    for number, (old, new) in enumerate(zip(locked["losses"], entry["losses"], strict=False), 1):
        if old != new:
            now, then = float.fromhex(new), float.fromhex(old)
            return f"loss {number} is {now:.9g} instead of {then:.9g}; --against=REF says more."
    return "the first losses are equal; --against=REF says more."
