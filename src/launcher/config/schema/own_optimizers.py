"""Rules of a model that steps its own optimizers, as its class declares by `owns_optimizers`."""

from collections.abc import Iterator
from typing import Any

from launcher.config.messages import ConfigIssue, show
from launcher.config.schema.declared import declared
from launcher.config.tree import get

ALLOWED: dict[str, tuple[tuple[object, ...], str]] = {
    "scheduler._target_": ((None,), "scheduler=none, and schedules of its own"),
    "precision.name": (("fp32", "tf32", "bf16"), "precision=fp32 or bf16"),
    "trainer.lanes": ((None,), "trainer.lanes=null"),
    "trainer.compile": ((False,), "trainer.compile=false"),
    "trainer.activation_checkpointing": (("none",), "trainer.activation_checkpointing=none"),
    "trainer.max_non_finite_grad_retries": ((None,), "trainer.max_non_finite_grad_retries=null"),
    "trainer.max_grad_norm": ((1.0, 0.0, None), "trainer.max_grad_norm=1.0, which it ignores"),
}
"""Values of keys that request nothing of a step that the model makes itself, and what to use."""


def own_optimizer_issues(tree: dict[str, Any]) -> Iterator[ConfigIssue]:
    """Report settings that a model's own step cannot honour."""
    leaves_steps = {
        name: declared(tree.get(name), "own_steps") for name in ("optimizer", "strategy")
    }
    if not declared(tree.get("model"), "owns_optimizers"):
        if leaves_steps["optimizer"]:
            text = (
                "the model's class does not declare the optimizers that it steps itself; e.g."
                ' owns_optimizers = ("optimizer",), or use optimizer=adamw.'
            )
            yield ConfigIssue("optimizer", "none", text)
        return
    batch = (None, get(tree, "data.batch_size")), "null, since a step is one batch"
    rules = {**ALLOWED, "trainer.micro_batch_size": batch}
    ways = {key: way for key, (values, way) in rules.items() if get(tree, key) not in values}
    ways |= {f"{name}._target_": f"{name}=none" for name, fits in leaves_steps.items() if not fits}
    for key, way in ways.items():
        text = f"the model steps its own optimizers (owns_optimizers); use {way}."
        yield ConfigIssue(key, show(get(tree, key)).strip("'"), text)
