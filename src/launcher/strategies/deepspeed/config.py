"""DeepSpeed's configuration, completed with what the run decides: batch sizes, clipping and the number format."""

from pathlib import Path
from typing import Any

from launcher.config.deepspeed_file import BF16, FP16, file_faults
from launcher.errors import ConfigError
from launcher.optim.precision import Precision
from launcher.strategies.step import StepPlan


def complete(
    config: dict[str, Any], plan: StepPlan, precision: Precision, world_size: int, path: Path | None = None
) -> dict[str, Any]:
    """DeepSpeed's configuration of the run.

    Args:
        path: the file that `config` was read from, if any.
    Raises:
        ConfigError: the file contradicts the run.
    """
    micro, times = plan.micro_batch_size or 1, plan.grad_accum_steps
    run = {
        "data.batch_size": micro * times * world_size,
        "trainer.micro_batch_size": micro,
        "trainer.max_grad_norm": plan.max_grad_norm,
        "precision.name": precision.name,
        "accumulation": times,
    }
    if path is not None and (faults := list(file_faults(config, path, run))):
        raise ConfigError(*map(str, faults))
    formats = {key: {"enabled": False} for key in (FP16, BF16)}
    if precision.name in formats:
        formats[precision.name] = {**config.get(precision.name, {}), "enabled": True}
    if formats[BF16]["enabled"]:  # otherwise DeepSpeed would update with gradients that are not finite
        formats[BF16]["check_grad_overflow"] = True
    return {
        "steps_per_print": None,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **{key: value for key, value in config.items() if key not in ("optimizer", "scheduler")},
        **formats,
        "train_batch_size": run["data.batch_size"],
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": times,
        "gradient_clipping": plan.max_grad_norm or 0.0,
    }
