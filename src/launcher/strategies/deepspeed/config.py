"""DeepSpeed's configuration: made of the strategy's options, or read from a file; then filled in from the run, which it
must not contradict. https://www.deepspeed.ai/docs/config-json/ has its keys."""

import json
import math
from pathlib import Path
from typing import Any

from launcher.config.messages import hint, show
from launcher.errors import ConfigError
from launcher.optim.precision import Precision
from launcher.strategies.step import StepPlan

KEY = "strategy.config_file"
ZERO, FP16, BF16 = "zero_optimization", "fp16", "bf16"
KEYS = frozenset({
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    FP16, BF16, ZERO, "communication_data_type", "prescale_gradients", "gradient_predivide_factor", "data_types",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "steps_per_print", "wall_clock_breakdown",
    "memory_breakdown", "dump_state", "flops_profiler", "comms_logger",
})  # fmt: skip
"""What a file may have. Others would be ignored here, or change what a checkpoint has to hold."""
OURS = {
    "optimizer": "optimizer=adamw optimizer.lr=...",
    "scheduler": "scheduler=constant_with_warmup scheduler.warmup_steps=...",
    "amp": "precision=",
    "torch_autocast": "precision=",
    "activation_checkpointing": "trainer.activation_checkpointing=",
    "compile": "trainer.compile=",
    "tensorboard": "tracker=",
    "wandb": "tracker=",
    "csv_monitor": "tracker=",
}
"""Sections whose work is done by a part of the launcher, and how that is asked for."""
PLAIN = {
    "compute_grad_norm": True,
    "elastic_checkpoint": False,
    "mics_shard_size": -1,
    "zenflow": None,
    "zero_hpz_partition_size": 1,
    "zero_quantized_gradients": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_weights": False,
}
"""Keys of `zero_optimization` under which a rank's pieces are not what a checkpoint takes them for, and their harmless
values."""


def from_options(options: dict[str, Any], on_gpu: bool) -> dict[str, Any]:
    """
    Args:
        options: `DeepSpeedStrategy`'s arguments by name.
        on_gpu: what is offloaded lies in pinned memory of the host.
    Raises:
        ConfigError: the stage has nothing to offload.
    """
    stage = options["zero_stage"]
    if options["offload_optimizer"] and not stage:
        raise ConfigError("strategy.offload_optimizer=true: needs strategy.zero_stage=1, 2 or 3.")
    if options["offload_param"] and stage != 3:
        raise ConfigError("strategy.offload_param=true: needs strategy.zero_stage=3, the one that shards parameters.")
    host = {"device": "cpu", "pin_memory": on_gpu}
    return {
        ZERO: {
            "stage": stage,
            **({"offload_optimizer": host} if options["offload_optimizer"] else {}),
            **({"offload_param": host} if options["offload_param"] else {}),
            "overlap_comm": options["overlap_comm"],
            "contiguous_gradients": options["contiguous_gradients"],
            "reduce_bucket_size": options["reduce_bucket_size"],
            "sub_group_size": options["sub_group_size"],
            "stage3_prefetch_bucket_size": options["stage3_prefetch_bucket_size"],
            "stage3_param_persistence_threshold": options["stage3_param_persistence_threshold"],
            "stage3_max_live_parameters": options["stage3_max_live_parameters"],
            "stage3_max_reuse_distance": options["stage3_max_reuse_distance"],
            "stage3_gather_16bit_weights_on_model_save": options["stage3_gather_16bit_weights_on_model_save"],
        },
        FP16: {
            "loss_scale": options["loss_scale"],
            "loss_scale_window": options["loss_scale_window"],
            "initial_scale_power": options["initial_scale_power"],
            "hysteresis": options["hysteresis"],
            "min_loss_scale": options["min_loss_scale"],
        },
        "wall_clock_breakdown": options["wall_clock_breakdown"],
    }


def read_file(path: Path) -> dict[str, Any]:
    """A configuration file without its values of "auto", which are for others to fill in.

    Raises:
        ConfigError: it cannot be read, or has keys that cannot be had here.
    """
    try:
        config = json.loads(path.expanduser().read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{KEY}={path}: cannot be read as JSON ({reason}).") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{KEY}={path}: should hold an object of keys and values.")
    config = _without_auto(config)
    if "bfloat16" in config:  # its older name
        config[BF16] = config.pop("bfloat16")
    for key in config:
        if key in OURS:
            raise ConfigError(f"{KEY}={path}: take {key} out of the file; here it is {OURS[key]} that says it.")
        if key not in KEYS:
            raise ConfigError(f"{KEY}={path}: {key} cannot be had here; take it out of the file{hint(key, KEYS)}")
    zero = _section(config, ZERO, path)
    for key, harmless in PLAIN.items():
        if zero.get(key, harmless) != harmless:
            raise ConfigError(f"{KEY}={path}: {ZERO}.{key}={show(zero[key])} cannot be had here; take it out.")
    for key in ("offload_optimizer", "offload_param"):
        offload = zero.get(key) or {}
        if offload.get("device", "none") not in ("none", "cpu") or offload.get("ratio", 1.0) != 1.0:
            raise ConfigError(f"{KEY}={path}: {ZERO}.{key} can be had with device cpu or none, and all of it.")
    return config


def _without_auto(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_auto(one) for key, one in value.items() if one != "auto"}
    return value


def _section(config: dict[str, Any], key: str, path: Path | None) -> dict[str, Any]:
    section = config.get(key) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{KEY}={path}: {key} should hold an object of keys and values.")
    return section


def complete(
    config: dict[str, Any], plan: StepPlan, precision: Precision, world_size: int, path: Path | None = None
) -> dict[str, Any]:
    """The configuration with what the run knows: batch sizes, clipping, the number format.

    Args:
        path: of the file that it was read from.
    Raises:
        ConfigError: it says something else.
    """
    micro, times = plan.micro_batch_size or 1, plan.grad_accum_steps
    batch = micro * times * world_size
    ours: dict[str, tuple[Any, str]] = {
        "train_batch_size": (batch, f"data.batch_size={batch}"),
        "train_micro_batch_size_per_gpu": (micro, f"trainer.micro_batch_size={micro}"),
        "gradient_accumulation_steps": (
            times,
            f"data.batch_size={batch} over {world_size} ranks in micro-batches of {micro} makes {times}",
        ),
        "gradient_clipping": (plan.max_grad_norm or 0.0, f"trainer.max_grad_norm={show(plan.max_grad_norm)}"),
    }
    filled = dict(config)
    for key, (value, reason) in ours.items():
        if (stated := config.get(key)) is not None and not _equal(stated, value):
            raise ConfigError(f"{KEY}={path}: {key} is {show(stated)}, but {reason}; take it out of the file.")
        filled[key] = value
    formats = {FP16: precision.name == "fp16", BF16: precision.name == "bf16"}
    for key, wanted in formats.items():
        section = _section(config, key, path)
        stated = section.get("enabled", wanted)
        if stated is not wanted:
            raise ConfigError(
                f"{KEY}={path}: {key}.enabled is {show(stated)}, but precision={precision.name}; take it out of the "
                f"file{f', or take precision={key}' if stated else ''}."
            )
        filled[key] = {**section, "enabled": wanted} if wanted else {"enabled": False}
    if formats[BF16]:  # or it would update with whatever comes: only fp16's scaler looks otherwise
        filled[BF16]["check_grad_overflow"] = True
    return {
        "steps_per_print": None,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **filled,
    }


def _equal(stated: Any, value: Any) -> bool:
    is_number = isinstance(stated, (int, float)) and not isinstance(stated, bool)
    return is_number and math.isclose(stated, value, rel_tol=1e-9)
