"""An optimizer's state under ZeRO by parameter name, as `optimizer_state` has it, and its way back at any stage."""

from collections.abc import Iterable
from typing import Any

import torch

from launcher.errors import TrainingError
from launcher.strategies.base import Saved
from launcher.strategies.deepspeed.zero import Slot
from launcher.strategies.optimizer_state import HOW, check_groups


def state_snapshot(
    optimizer: torch.optim.Optimizer, slots: Iterable[Slot], members: list[list[str]]
) -> tuple[dict[str, tuple[torch.Tensor, Slot | None]], list[dict[str, Any]]]:
    """
    Args:
        members: names of each group's parameters.
    Returns:
        This rank's state tensors by `<parameter>/<key>`, each with the slot whose run it is (None: it is of one value
        for the whole parameter); and the groups with their settings and what else there is of state.
    """
    tensors: dict[str, tuple[torch.Tensor, Slot | None]] = {}
    values: list[dict[str, Any]] = [{} for _ in members]
    for slot in slots:
        for key, value in optimizer.state.get(slot.flat, {}).items():
            if not isinstance(value, torch.Tensor):
                values[slot.group] |= {f"{name}/{key}": value for name in members[slot.group]}
            elif value.shape == slot.flat.shape:
                tensors[f"{slot.name}/{key}"] = slot.of(value), slot
            elif slot.start == 0:
                tensors[f"{slot.name}/{key}"] = value.detach(), None
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    groups = [
        {"settings": one, "params": names, "values": of_group}
        for one, names, of_group in zip(settings, members, values, strict=True)
    ]
    return tensors, groups


def load_state(
    optimizer: torch.optim.Optimizer,
    slots: Iterable[Slot],
    members: list[list[str]],
    saved: Saved,
    prefix: str,
    groups: list[dict[str, Any]],
) -> None:
    """Put back what `state_snapshot` gave, of whichever stage and number of ranks.

    Raises:
        TrainingError: the optimizer has other groups or parameters than the checkpoint, or parameters that ZeRO lays
            together have been updated a different number of times.
    """
    check_groups(optimizer, groups)
    for group, names, entry in zip(optimizer.param_groups, members, groups, strict=True):
        if missing := set(names) - {name for one in groups for name in one["params"]}:
            raise TrainingError(f"The checkpoint's optimizer has no state for the parameter {min(missing)}.")
        group.update({key: value for key, value in entry["settings"].items() if key not in HOW})
    keys: dict[str, list[str]] = {}
    for full in saved.names():
        if full.startswith(prefix):
            name, key = full.removeprefix(prefix).rsplit("/", 1)
            keys.setdefault(name, []).append(key)
    values = [[*full.rsplit("/", 1), value] for entry in groups for full, value in entry["values"].items()]
    common: list[tuple[Slot, str, torch.Tensor]] = []
    with saved.together():
        for slot in slots:
            state = optimizer.state[slot.flat]
            state.update({key: value for name, key, value in values if name == slot.name})
            for key in keys.get(slot.name, []):
                full = f"{prefix}{slot.name}/{key}"
                if saved.shape(full) == slot.shape:
                    _read_run(saved, full, state, key, slot)
                else:
                    state[key] = _read_value(saved, full, slot, optimizer.param_groups[slot.group])
                    common.append((slot, key, state[key]))
    for slot, key, value in common:
        if not torch.equal(seen := optimizer.state[slot.flat][key], value):
            raise TrainingError(
                f"{slot.name}/{key} is {value.tolist()}, and {seen.tolist()} for a parameter with which ZeRO lays it "
                "together; run.init_from takes the weights alone."
            )


def _read_run(saved: Saved, full: str, state: dict[str, Any], key: str, slot: Slot) -> None:
    if key not in state:
        state[key] = torch.zeros_like(slot.flat, dtype=saved.dtype(full), requires_grad=False)
    saved.read_into(full, slot.of(state[key]), (slot.start,))


def _read_value(saved: Saved, full: str, slot: Slot, group: dict[str, Any]) -> torch.Tensor:
    """A step count lies on the CPU unless the kernel reads it itself."""
    on_device = group.get("fused") or group.get("capturable")
    device = slot.flat.device if on_device else torch.device("cpu")
    value = torch.zeros(saved.shape(full), dtype=saved.dtype(full), device=device)
    saved.read_into(full, value)
    return value
