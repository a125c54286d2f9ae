"""Rules of a model that steps its own optimizers, as its class declares by `owns_optimizers`."""

from collections.abc import Iterator
from typing import Any

from launcher.config.messages import ConfigIssue, show
from launcher.config.schema.declared import declared
from launcher.config.tree import get

PRECISIONS = ("fp32", "tf32", "bf16")
ALLOWED: dict[str, tuple[object, ...]] = {
    "trainer.lanes": (None,),
    "trainer.compile": (False,),
    "trainer.activation_checkpointing": ("none",),
    "trainer.max_non_finite_grad_retries": (None,),
    "trainer.max_grad_norm": (1.0, 0.0, None),
}
"""Keys of a step that the model makes itself, with the values that request nothing of it."""


def own_optimizer_issues(tree: dict[str, Any]) -> Iterator[ConfigIssue]:
    """Report settings that a model's own step cannot honour."""
    optimizer, strategy = tree.get("optimizer"), tree.get("strategy")
    if not declared(tree.get("model"), "owns_optimizers"):
        if declared(optimizer, "own_steps"):
            text = (
                "the model's class does not declare owns_optimizers; declare it, or choose another"
                " optimizer, e.g. optimizer=adamw."
            )
            yield ConfigIssue("optimizer", "none", text)
        return
    if not declared(optimizer, "own_steps"):
        yield _issue("optimizer._target_", get(optimizer, "_target_"), "use optimizer=none")
    if tree.get("scheduler"):
        target = get(tree, "scheduler._target_")
        yield _issue("scheduler._target_", target, "use scheduler=none, and schedules of its own")
    if not declared(strategy, "own_steps"):
        yield _issue("strategy._target_", get(strategy, "_target_"), "use strategy=none")
    if (name := get(tree, "precision.name")) not in PRECISIONS:
        yield _issue("precision.name", name, "use precision=fp32 or bf16")
    size, micro = get(tree, "data.batch_size"), get(tree, "trainer.micro_batch_size")
    if micro not in (None, size):
        yield _issue("trainer.micro_batch_size", micro, "use null, since a step is one batch")
    for key, values in ALLOWED.items():
        if (value := get(tree, key)) not in values:
            yield _issue(key, value, f"use {key}={show(values[0])}")


def _issue(key: str, value: object, way: str) -> ConfigIssue:
    text = f"the model steps its own optimizers (owns_optimizers); {way}."
    return ConfigIssue(key, show(value).strip("'"), text)
