"""Rules of a model that steps its own optimizers, as its class declares by `owns_optimizers`."""

from collections.abc import Iterator

from launcher.config.messages import ConfigIssue, show
from launcher.config.schema.declared import declared

PRECISIONS = ("fp32", "tf32", "bf16")
ALLOWED: dict[str, tuple[object, ...]] = {
    "trainer.lanes": (None,),
    "trainer.compile": (False,),
    "trainer.activation_checkpointing": ("none",),
    "trainer.max_non_finite_grad_retries": (None,),
    "trainer.max_grad_norm": (1.0, 0.0, None),
}
"""Keys of a step that the model makes itself, with the values that request nothing of it."""


def own_optimizer_issues(
    model: object,
    optimizer: object,
    scheduler: object,
    strategy: object,
    precision: object,
    batch_size: object,
    micro_batch_size: object,
    *values: object,
) -> Iterator[ConfigIssue]:
    """Report settings that a model's own step cannot honour, the last ones by `ALLOWED`."""
    if not declared(model, "owns_optimizers"):
        if declared(optimizer, "own_steps"):
            text = (
                "the model's class does not declare owns_optimizers; declare it, or choose another"
                " optimizer, e.g. optimizer=adamw."
            )
            yield ConfigIssue("optimizer", "none", text)
        return
    if not declared(optimizer, "own_steps"):
        yield _issue("optimizer._target_", optimizer, "use optimizer=none")
    if scheduler is not None:
        yield _issue(
            "scheduler._target_", scheduler, "use scheduler=none, and schedules of its own"
        )
    if not declared(strategy, "own_steps"):
        yield _issue("strategy._target_", strategy, "use strategy=none")
    if precision not in PRECISIONS:
        yield _issue("precision.name", precision, "use precision=fp32 or bf16")
    if micro_batch_size not in (None, batch_size):
        way = "use null, since a step is one batch"
        yield _issue("trainer.micro_batch_size", micro_batch_size, way)
    for (key, allowed), value in zip(ALLOWED.items(), values, strict=True):
        if value not in allowed:
            yield _issue(key, value, f"use {key}={show(allowed[0])}")


def _issue(key: str, value: object, way: str) -> ConfigIssue:
    text = f"the model steps its own optimizers (owns_optimizers); {way}."
    return ConfigIssue(key, show(value).strip("'"), text)
