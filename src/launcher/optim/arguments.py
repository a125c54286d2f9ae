"""The interface of a class of optimizers or schedules."""

import inspect

from torch.optim import Optimizer


def has_required_argument(cls: type, method: str) -> bool:
    """Return whether a method has a required argument, as LBFGS's `step` has."""
    parameters = list(inspect.signature(getattr(cls, method)).parameters.values())[1:]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is p.empty and p.kind not in variable for p in parameters)


def has_own_state_dict(optimizer: Optimizer) -> bool:
    names = ("state_dict", "load_state_dict")
    return any(getattr(type(optimizer), name) is not getattr(Optimizer, name) for name in names)
