"""A preset trained with two codes, and what is found about it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.config.identity.difference import is_within
from launcher.config.tree import leaves
from launcher.errors import REJECTED
from launcher.process.plural import plural
from launcher.proof.code_copy import Code
from launcher.proof.commits import git
from launcher.proof.first_difference import (
    BY_PARAMETER,
    Difference,
    first_difference,
    modules_renamed,
    renames,
    size_of,
)
from launcher.proof.side import NotTrained, Preset, Side, in_threads, new_folder, train
from launcher.rundir.data_files import find_paths

IDENTICAL = 0
DIFFERENT = 1
OF_THE_FOLDER = ("paths", "run", "hooks.guard_trace")
"""Keys that differ because the two trainings have folders of their own."""
ENVIRONMENT = ("pyproject.toml", "requirements*.txt", "constraints*.txt", "uv.lock", "poetry.lock")
"""Files that say which packages are installed."""
MAX_SHOWN = 4


@dataclass
class Verdict:
    """An answer about a preset: a line, and the exit code.

    Args:
        preset: the preset.
        text: what was compared, or the first difference, or why nothing was compared.
        code: the exit code.
        side: the training with the code here, if there is one.
        details: further lines.
    """

    preset: Preset
    text: str
    code: int
    side: Side | None = None
    details: list[str] = field(default_factory=list)


def judge_all(
    judge: Callable[[Preset], Verdict], presets: Iterable[Preset], count: int = 1
) -> Iterator[Verdict]:
    """Judge the presets, some at a time, and yield what is found in their order."""

    def judged(preset: Preset) -> Verdict:
        try:
            return judge(preset)
        except NotTrained as error:
            return Verdict(preset, f"cannot be trained with {error.label}: {error}", REJECTED)

    return in_threads(judged, presets, count)


def train_only(here: Code, preset: Preset, root: Path) -> Verdict:
    """Train a preset with the code here, to compare it with other presets."""
    side = train(here, preset, new_folder(root))
    return Verdict(preset, f"trained {plural(side.end, 'step')}.", IDENTICAL, side)


def compare_codes(old: Code, new: Code, preset: Preset, root: Path) -> Verdict:
    """Train a preset with both codes, in folders below `root`, and compare what they compute."""
    here = train(new, preset, new_folder(root))
    try:
        there = train(old, preset, new_folder(root))
    except NotTrained as error:
        if not error.is_rejected:
            raise
        text = f"not compared, {old.label} rejects it: {error}"
        return Verdict(preset, text, IDENTICAL, here)
    return compare_sides(there, here, preset, root)


def compare_sides(there: Side, here: Side, preset: Preset, root: Path) -> Verdict:
    """Compare two trainings of a preset; train them again if they differ."""
    foreign = there.code.list_foreign(there.modules) or here.code.list_foreign(here.modules)
    details = [*_changed_keys(there.config, here.config), *_shared_files(there, here), *foreign]
    difference = first_difference(there, here)
    if difference is not None:
        return _look_closer(there, here, preset, difference, root, details)
    tensors = plural(sum(place.kind == "tensor" for place in here.values), "tensor")
    renamed = ", ".join(modules_renamed(renames(there, here)))
    note = f"; renamed: {renamed}" if renamed else ""
    text = f"bitwise identical ({plural(here.end, 'step')}, {tensors}){note}."
    return Verdict(preset, text, IDENTICAL, here, details)


def _look_closer(
    there: Side, here: Side, preset: Preset, difference: Difference, root: Path, details: list[str]
) -> Verdict:
    """Train both sides once more up to a difference, with its values kept.

    It shows how large the difference is, or that a side does not even repeat itself.
    """
    step, kind, _, _ = difference.place
    steps = min(max(1, step), preset.steps)
    traces: list[Path] = []
    for side in (there, here):
        again = train(side.code, preset, new_folder(root), step, steps)
        other = first_difference(side, again)
        if other is not None and other.place.kind != "end":
            text = f"does not repeat with {side.code.label}: a second training {other.describe()}."
            if side.config.get("device", "cpu") != "cpu":
                text += " trainer.deterministic=true names the operations that do not repeat."
            return Verdict(preset, text, REJECTED, here)
        traces.append(again.trace)
    size = size_of(difference, *traces) if kind in BY_PARAMETER else ""
    return Verdict(preset, f"{difference.describe(size)}.", DIFFERENT, here, details)


def _changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line with the keys of the configuration whose values differ, or none."""
    then = leaves(old)
    now = leaves(new)
    texts = [
        f"{key}: {then.get(key, 'not set')} -> {now.get(key, 'not set')}"
        for key in {**then, **now}
        if then.get(key) != now.get(key) and not is_within(key, OF_THE_FOLDER)
    ]
    more = f", and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else ""
    if texts:
        return [f"configuration: {', '.join(texts[:MAX_SHOWN])}{more}"]
    return []


def _shared_files(old: Side, new: Side) -> list[str]:
    """Name the tracked files of data and packages that the older commit has otherwise."""
    top = new.code.copy_of or new.code.root
    named = (Path(path).resolve() for path in find_paths(new.config.get("data", {})))
    data = [str(path) for path in named if path.exists() and path.is_relative_to(top)]
    texts = []
    for text, paths in (
        ("both codes read the working tree's", data),
        ("both codes have the packages that are installed, in spite of a change in", ENVIRONMENT),
    ):
        changed = git(top, "diff", "--name-only", old.code.label, "--", *paths) if paths else None
        texts += [f"{text} {', '.join(changed.splitlines())}"] if changed else []
    return texts
