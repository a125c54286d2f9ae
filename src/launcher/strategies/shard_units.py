"""The modules of a model that are sharded, gathered and prefetched as a unit."""

from collections import Counter
from collections.abc import Iterator

from torch import nn

from launcher.models.declared import declared_method

MIN_PARAMS = 100_000
"""Default of the size rule."""
NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)
"""Modules that are never called. Weights are gathered when a module is called."""
USED_FROM_OUTSIDE = (nn.Embedding,)
"""Modules whose weights others may use without calling them, like an output layer tied to the
embedding."""
INDIVISIBLE = (nn.MultiheadAttention,)
"""Modules that use their children's weights without calling the children."""


def shard_units(model: nn.Module, min_params: int | None = None) -> list[nn.Module]:
    """Return the units, inner ones before the units that contain them, without the model itself.

    A module with `min_params` parameters that are in no inner unit is one; with 0 there are none.
    Default None: the model's `shard_units()`, or if it declares none, this rule with `MIN_PARAMS`.
    """
    if min_params is None and (units_of := declared_method(model, "shard_units")) is not None:
        return list(reversed(units_of()))
    smallest = MIN_PARAMS if min_params is None else min_params
    if not smallest:
        return []
    uses = Counter(id(p) for module in model.modules() for _, p in own_parameters(module))
    units: list[nn.Module] = []
    for child in model.children():
        _collect(child, smallest, uses, units)
    return units


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield names and parameters without children's, a tied one under each of its names."""
    return module.named_parameters(recurse=False, remove_duplicate=False)


def _collect(module: nn.Module, smallest: int, uses: Counter[int], units: list[nn.Module]) -> int:
    """Add the units in a module and itself; return how many of its parameters are in no unit."""
    if isinstance(module, INDIVISIBLE):
        left = sum(p.numel() for p in module.parameters())
    else:
        left = sum(_collect(child, smallest, uses, units) for child in module.children())
        left += sum(p.numel() for _, p in own_parameters(module))
    if left < smallest or isinstance(module, NEVER_CALLED + USED_FROM_OUTSIDE) or module in units:
        return left
    within = Counter(id(p) for m in module.modules() for _, p in own_parameters(m))
    if any(count < uses[key] for key, count in within.items()):
        # A parameter that is shared with an outer module can only be gathered by a unit that
        # contains both.
        return left
    units.append(module)
    return 0
