"""Start-up without the compiler: a run that compiles nothing need not load torch's compiler stack.

The first use of any `torch.optim.Optimizer` imports `torch._dynamo` (with sympy and inductor: some 800 modules, more
than a second of CPU time), only to mark the optimizer's methods as not traceable and to break the graph around `step`.
Neither means anything while nothing is being traced.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

DYNAMO = "torch._dynamo"


def skip_dynamo_import() -> bool:
    """Let optimizers work without importing `torch._dynamo`; call it before the first optimizer is made.

    Two places in torch import it (seen in torch 2.6 to 2.13), both are looked for and left alone where they are not
    as expected, so on another torch this does less or nothing, and never something else:

    - `torch._compile._disable_dynamo` wraps `zero_grad`, `add_param_group`, `state_dict` and `load_state_dict`. It
      keeps the untraceable version of the function in the function's own attribute `__dynamo_disable`, and imports
      dynamo to make one if there is none. We put one there that calls the function, until something else has
      imported dynamo.
    - `torch.optim.optimizer._use_grad_for_differentiable` wraps `step` and imports dynamo for its `graph_break()`.
      We put a `step` before it that does what is left of it without dynamo.

    As soon as something else imports dynamo (`torch.compile`, DDP, FSDP), torch's own functions run again.

    Returns:
        True if both places were found, so a plain training step imports no dynamo.
    """
    from torch.optim import Optimizer

    methods = ("zero_grad", "add_param_group", "state_dict", "load_state_dict")
    seeded = [_seed_disabled(getattr(Optimizer, name)) for name in methods]
    stepped = [_step_without_dynamo(optimizer) for optimizer in _torch_optimizers()]
    return all(seeded) and any(stepped)


def _seed_disabled(method: Callable) -> bool:
    """Give `method`'s inner function a `__dynamo_disable`, so that `_disable_dynamo` does not import dynamo for it."""
    function = getattr(method, "__wrapped__", None)
    if function is None or "__dynamo_disable" not in method.__code__.co_consts:
        return False
    if hasattr(function, "__dynamo_disable"):  # torch has made its own: dynamo is there already
        return True

    @functools.wraps(function)
    def until_dynamo(*args: Any, **kwargs: Any) -> Any:
        if DYNAMO not in sys.modules:
            return function(*args, **kwargs)
        if getattr(function, "__dynamo_disable", None) is until_dynamo:
            delattr(function, "__dynamo_disable")  # from now on torch's own
        return method(*args, **kwargs)

    setattr(function, "__dynamo_disable", until_dynamo)
    return True


def _torch_optimizers() -> list[type]:
    """The optimizer classes of `torch.optim`, whose `step` torch has wrapped."""
    import torch

    classes = vars(torch.optim).values()
    return [each for each in classes if inspect.isclass(each) and issubclass(each, torch.optim.Optimizer)]


def _step_without_dynamo(optimizer: type) -> bool:
    """Replace `optimizer.step` where it is wrapped by `_use_grad_for_differentiable`."""
    import torch

    wrapped = vars(optimizer).get("step")
    if getattr(wrapped, "without_dynamo", False):
        return True
    code = getattr(wrapped, "__code__", None)
    if wrapped is None or code is None or code.co_name != "_use_grad" or not hasattr(wrapped, "__wrapped__"):
        return False
    step = wrapped.__wrapped__

    @functools.wraps(step)
    def step_until_dynamo(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or DYNAMO in sys.modules:
            return wrapped(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **kwargs)

    step_until_dynamo.without_dynamo = True  # type: ignore[attr-defined]
    optimizer.step = step_until_dynamo  # type: ignore[attr-defined]
    return True
