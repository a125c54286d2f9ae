"""Rules of a model that steps its own optimizers, as its class declares by `owns_optimizers`."""

from collections.abc import Iterator

from launcher.config.messages import ConfigIssue, show
from launcher.config.schema.declared import declared

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


def own_optimizer_issues(
    model: object,
    optimizer: object,
    strategy: object,
    batch_size: object,
    micro_batch_size: object,
    *values: object,
) -> Iterator[ConfigIssue]:
    """Report settings that a model's own step cannot honour, the last ones by `ALLOWED`."""
    if not declared(model, "owns_optimizers"):
        if declared(optimizer, "own_steps"):
            text = (
                "the model's class does not declare the optimizers that it steps itself; e.g."
                ' owns_optimizers = ("optimizer",), or use optimizer=adamw.'
            )
            yield ConfigIssue("optimizer", "none", text)
        return
    for name, target in {"optimizer": optimizer, "strategy": strategy}.items():
        if not declared(target, "own_steps"):
            yield _issue(f"{name}._target_", target, f"{name}=none")
    if micro_batch_size not in (None, batch_size):
        way = "null, since a step is one batch"
        yield _issue("trainer.micro_batch_size", micro_batch_size, way)
    for (key, (allowed, way)), value in zip(ALLOWED.items(), values, strict=True):
        if value not in allowed:
            yield _issue(key, value, way)


def _issue(key: str, value: object, way: str) -> ConfigIssue:
    text = f"the model steps its own optimizers (owns_optimizers); use {way}."
    return ConfigIssue(key, show(value).strip("'"), text)
