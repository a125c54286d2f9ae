"""Find the optimizers and schedulers that need an argument to make a step."""

import inspect


def has_required_argument(cls: type, method: str) -> bool:
    """Return whether a method has a required argument, as LBFGS's `step` has."""
    parameters = list(inspect.signature(getattr(cls, method)).parameters.values())[1:]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is p.empty and p.kind not in variable for p in parameters)
