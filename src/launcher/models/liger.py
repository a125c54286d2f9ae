"""The loss of liger-kernel (Hsu et al. 2024, arXiv:2410.10989) for models of transformers."""

from importlib.util import find_spec
from inspect import signature
from typing import Any

from launcher.errors import ConfigError


def check(task: str) -> None:
    """Check that a model of this task can have the loss, before it is built."""
    if task != "causal_lm":
        raise ConfigError(
            f"model.liger=true: is for model.task=causal_lm, not {task}; use model.liger=false."
        )
    if find_spec("liger_kernel") is None:
        raise ConfigError(
            "model.liger=true: needs a GPU and the package liger-kernel; pip install"
            " 'torch-launcher[liger]', or use model.liger=false."
        )


def apply(model: Any) -> None:
    """Let a causal model compute its training loss without the logits of all tokens.

    Liger's other kernels are not applied: they replace functions of transformers for all models of
    the process.
    """
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as FUNCTIONS

    architecture = model.config.model_type
    function = FUNCTIONS.get(architecture)
    options = {} if function is None else signature(function).parameters
    if function is None or "fused_linear_cross_entropy" not in options:
        raise ConfigError(
            f"model.liger=true: liger-kernel has no loss for model_type={architecture}; use"
            " model.liger=false."
        )
    others = {name: False for name, option in options.items() if isinstance(option.default, bool)}
    function(**{**others, "fused_linear_cross_entropy": True}, model=model)
