"""A preset trained with two codes, and what is found about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config.identity.difference import is_within
from launcher.config.tree import leaves
from launcher.errors import REJECTED
from launcher.process.plural import plural
from launcher.proof.code_copy import Code
from launcher.proof.commits import git
from launcher.proof.side import NotTrained, Preset, Side, new_folder, train
from launcher.rundir.data_files import find_paths

if TYPE_CHECKING:
    from launcher.proof.first_difference import Difference

IDENTICAL = 0
DIFFERENT = 1
OF_THE_FOLDER = ("paths", "run", "hooks.guard_trace")
"""Keys that differ because the two trainings have folders of their own."""
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


def compare_codes(old: Code, new: Code, preset: Preset, root: Path) -> Verdict:
    """Train a preset with both codes, in folders below `root`, and compare what they compute."""
    try:
        here = train(new, preset, new_folder(root))
    except NotTrained as error:
        return Verdict(preset, f"cannot be trained with {new.label}: {error}", REJECTED)
    try:
        there = train(old, preset, new_folder(root))
    except NotTrained as error:
        if error.is_rejected:
            return Verdict(
                preset, f"not compared, {old.label} rejects it: {error}", IDENTICAL, here
            )
        return Verdict(preset, f"cannot be trained with {old.label}: {error}", REJECTED, here)
    return compare_sides(there, here, preset, root)


def compare_sides(there: Side, here: Side, preset: Preset, root: Path) -> Verdict:
    """Compare two trainings of a preset; train them again if they differ."""
    from launcher.proof.first_difference import compare, modules_renamed  # late: torch

    foreign = there.list_foreign() or here.list_foreign()
    details = [*_data_changes(there.code, here.code, here.config), *foreign]
    changed = list_changed_keys(there.config, here.config)
    found = compare(there, here)
    if found.difference is not None:
        values = _look_closer(there, here, preset, found.difference, root)
        if isinstance(values, Verdict):
            return values
        text = f"{found.difference.describe(values)}."
        return Verdict(preset, text, DIFFERENT, here, [*changed, *details])
    steps, tensors = plural(found.steps, "step"), plural(found.tensors, "tensor")
    renamed = ", ".join(modules_renamed(found.renamed))
    note = f"; renamed: {renamed}" if renamed else ""
    text = f"bitwise identical ({steps}, {tensors}){note}."
    return Verdict(preset, text, IDENTICAL, here, [*changed, *details])


def _look_closer(
    there: Side, here: Side, preset: Preset, difference: "Difference", root: Path
) -> str | Verdict:
    """Train both sides once more up to a difference, with its values kept.

    Returns:
        The size of the difference, or a verdict that the training does not repeat at all.
    """
    from launcher.proof.first_difference import describe_values, step_differences  # late: torch

    steps = min(max(1, difference.step), preset.steps)
    keep = difference.step if difference.names else None
    traces: list[Path] = []
    for side in (there, here):
        try:
            again = train(side.code, preset, new_folder(root), keep, steps)
        except NotTrained:
            # The difference itself is known, and only its size is not.
            return ""
        for other in step_differences(side, again, {}):
            text = f"does not repeat with {side.code.label}: a second training {other.describe()}."
            return Verdict(preset, text, REJECTED, here, _advice(here))
        traces.append(again.trace)
    return describe_values(traces[0], traces[1], difference)


def list_changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line with the keys of the configuration whose values differ, or none."""
    then, now = leaves(old), leaves(new)
    texts = [
        f"{key}: {then.get(key, 'not set')} -> {now.get(key, 'not set')}"
        for key in {**then, **now}
        if then.get(key) != now.get(key) and not is_within(key, OF_THE_FOLDER)
    ]
    if not texts:
        return []
    more = f", and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else ""
    return [f"configuration: {', '.join(texts[:MAX_SHOWN])}{more}"]


def _data_changes(old: Code, new: Code, config: Mapping[str, Any]) -> list[str]:
    """Return a line with the data files that git tracks and the older commit has otherwise.

    Both sides read their data in the working folder.
    """
    top = new.copy_of or new.root
    named = (Path(path).resolve() for path in find_paths(config.get("data", {})))
    paths = [str(path) for path in named if path.exists() and path.is_relative_to(top)]
    changed = git(top, "diff", "--name-only", old.label, "--", *paths) if paths else None
    names = (changed or "").split("\n")
    return [f"both codes read the working tree's {', '.join(names)}"] if changed else []


def _advice(side: Side) -> list[str]:
    """Say what lets operations repeat on the device of a training."""
    if side.machine is None or side.machine["device"] == "cpu":
        return []
    if side.config["trainer"]["deterministic"]:
        return []
    return ["trainer.deterministic=true names the operations that do not repeat."]
