"""DeepSpeed's configuration, completed with the run's batch sizes, clipping and number format."""

from typing import Any

from launcher.config.schema.deepspeed_file import BF16, FP16
from launcher.optim.precision import Precision
from launcher.strategies.step import StepPlan


def complete(
    config: dict[str, Any], plan: StepPlan, precision: Precision, world_size: int
) -> dict[str, Any]:
    micro_batch_size, grad_accum_steps = plan.micro_batch_size or 1, plan.grad_accum_steps
    formats = {key: {"enabled": False} for key in (FP16, BF16)}
    if precision.name in formats:
        formats[precision.name] = {**config.get(precision.name, {}), "enabled": True}
    # Otherwise DeepSpeed would update with gradients that are not finite.
    if formats[BF16]["enabled"]:
        formats[BF16]["check_grad_overflow"] = True
    return {
        "steps_per_print": None,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **config,
        **formats,
        "train_batch_size": micro_batch_size * grad_accum_steps * world_size,
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": grad_accum_steps,
        "gradient_clipping": plan.max_grad_norm or 0.0,
    }
