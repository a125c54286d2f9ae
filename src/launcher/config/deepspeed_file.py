"""A DeepSpeed configuration file (`strategy.config_file`): which keys are supported, and which contradict the run.

All contradictions are reported at once. A value of "auto" agrees with anything.
https://www.deepspeed.ai/docs/config-json/ documents the keys.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.config.messages import Fault, hint, show
from launcher.config.signature import signature
from launcher.config.tree import get
from launcher.errors import ConfigError
from launcher.run.files import expanded

KEY = "strategy.config_file"
TARGET = "launcher.strategies.deepspeed.DeepSpeedStrategy"
ZERO, FP16, BF16 = "zero_optimization", "fp16", "bf16"
SUPPORTED = frozenset({
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    FP16, BF16, ZERO, "optimizer", "scheduler", "communication_data_type", "prescale_gradients",
    "gradient_predivide_factor", "data_types", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "flops_profiler", "comms_logger",
})  # fmt: skip
"""Other keys would be ignored, or would change what a checkpoint must hold."""
HANDLED_BY_LAUNCHER = {
    "amp": "precision",
    "torch_autocast": "precision",
    "activation_checkpointing": "trainer.activation_checkpointing",
    "compile": "trainer.compile",
    "tensorboard": "tracker",
    "wandb": "tracker",
    "csv_monitor": "tracker",
}
"""Sections that Launcher handles itself, and the key to set instead."""
REQUIRED_ZERO_DEFAULTS = {
    "compute_grad_norm": True,
    "elastic_checkpoint": False,
    "mics_shard_size": -1,
    "zenflow": None,
    "zero_hpz_partition_size": 1,
    "zero_quantized_gradients": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_weights": False,
}
"""With other values, the pieces on each rank would differ from those in a checkpoint."""
SCHEDULERS = {"warmuplr": "constant_with_warmup", "warmupdecaylr": "linear", "warmupcosinelr": "cosine"}
SCHEDULER_KEYS = {
    "warmup_num_steps": "scheduler.warmup_steps",
    "warmup_max_lr": "optimizer.lr",
    "total_num_steps": "scheduler.max_steps",
    "cos_min_ratio": "scheduler.min_lr_ratio",
}
FIXED_SCHEDULER_VALUES = {"warmup_type": "linear", "warmup_min_lr": 0, "warmup_min_ratio": 0}
"""What every schedule of Launcher does: its warm-up is linear and starts at 0."""
IMPLEMENTATION = ("torch_adam", "adam_w_mode", "fp32_optimizer_states", "bias_correction")
"""Parameters of an optimizer that select a kernel and do not change what is computed."""


def crosschecks(tree: dict[str, Any]) -> Iterator[Fault]:
    """The faults of a resolved configuration with `strategy=deepspeed`."""
    strategy = tree.get("strategy")
    if not isinstance(strategy, dict) or strategy.get("_target_") != TARGET:
        return
    if strategy.get("offload_optimizer") is True and strategy.get("zero_stage") == 0:
        yield Fault("strategy.offload_optimizer", "true", "needs strategy.zero_stage=1, 2 or 3.")
    if strategy.get("offload_param") is True and strategy.get("zero_stage") != 3:
        yield Fault("strategy.offload_param", "true", "needs strategy.zero_stage=3, which shards parameters.")
    if get(tree, "trainer.no_sync_accumulate") is False:
        yield Fault(
            "trainer.no_sync_accumulate",
            "false",
            "DeepSpeed's stage decides when gradients are exchanged (0 and 1: once a step; 2 and 3: with each "
            "micro-batch); set trainer.no_sync_accumulate=true.",
        )
    if isinstance(strategy.get("config_file"), str):
        path = Path(strategy["config_file"])
        file, faults = _parse(path)
        yield from faults
        if not faults:
            run = {f"{group}.{key}": value for group in tree for key, value in _mapping(tree[group]).items()}
            yield from file_faults(file, path, run)
            yield from _options(file, path, strategy)


def read_file(path: Path) -> dict[str, Any]:
    """The file's content without values of "auto".

    Raises:
        ConfigError: it cannot be read, or is not a mapping of sections.
    """
    file, faults = _parse(path)
    if faults:
        raise ConfigError(*map(str, faults))
    return file


def _parse(path: Path) -> tuple[dict[str, Any], list[Fault]]:
    try:
        config = json.loads(expanded(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return {}, [Fault(KEY, str(path), f"cannot be read as JSON ({reason}).")]
    if not isinstance(config, dict):
        return {}, [Fault(KEY, str(path), "should hold an object of keys and values.")]
    config = _without_auto(config)
    if "bfloat16" in config:  # its former name
        config[BF16] = config.pop("bfloat16")
    sections = [key for key in (FP16, BF16, ZERO, "optimizer", "scheduler", "data_types") if config.get(key)]
    wrong = [key for key in sections if not isinstance(config[key], dict)]
    return config, [Fault(KEY, str(path), f"{key} should hold an object of keys and values.") for key in wrong]


def _without_auto(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_auto(item) for key, item in value.items() if item != "auto"}
    return value


def file_faults(file: dict[str, Any], path: Path, run: dict[str, Any]) -> Iterator[Fault]:
    """
    Args:
        run: values of the run by dotted key; keys that are not in it are not compared.
    """
    optimizer, scheduler = _mapping(file.get("optimizer")), _mapping(file.get("scheduler"))
    checks = (_unsupported(file), _batch(file, run), _precision(file, run))
    for check in (*checks, _optimizer(optimizer, run), _scheduler(scheduler, run)):
        for text in check:
            yield Fault(KEY, str(path), text)


def _unsupported(file: dict[str, Any]) -> Iterator[str]:
    for key in file:
        if key in HANDLED_BY_LAUNCHER:
            yield f"remove {key} from the file; set {HANDLED_BY_LAUNCHER[key]} instead."
        elif key not in SUPPORTED:
            yield f"{key} is not supported; remove it from the file{hint(key, SUPPORTED)}"
    zero = _mapping(file.get(ZERO))
    for key, default in REQUIRED_ZERO_DEFAULTS.items():
        if zero.get(key, default) != default:
            yield f"{ZERO}.{key}={show(zero[key])} is not supported; remove it from the file."
    for key in ("offload_optimizer", "offload_param"):
        offload = _mapping(zero.get(key))
        if offload.get("device", "none") not in ("none", "cpu") or offload.get("ratio", 1.0) != 1.0:
            yield f"{ZERO}.{key} is supported with device cpu or none and ratio 1 only; change it in the file."
    accumulates = _mapping(file.get("data_types")).get("grad_accum_dtype")
    if accumulates not in (None, "fp32") or (accumulates and zero.get("stage", 0) < 2 and _enabled(file, BF16)):
        yield (
            f"data_types.grad_accum_dtype={show(accumulates)} is supported with the value fp32 from {ZERO}.stage=2 on "
            "only; remove it from the file."
        )


def _batch(file: dict[str, Any], run: dict[str, Any]) -> Iterator[str]:
    keys = {
        "train_batch_size": "data.batch_size",
        "train_micro_batch_size_per_gpu": "trainer.micro_batch_size",
        "gradient_clipping": "trainer.max_grad_norm",
    }
    for key, own in keys.items():
        is_known = own in run and not (own == "trainer.micro_batch_size" and run[own] is None)
        if is_known and key in file and not _equal(file[key], run[own] or 0):
            yield _contradiction(key, file[key], own, run[own])
    times = run.get("accumulation")
    if times is not None and not _equal(file.get("gradient_accumulation_steps", times), times):
        yield (
            f"gradient_accumulation_steps is {show(file['gradient_accumulation_steps'])}, but data.batch_size="
            f"{run['data.batch_size']} in micro-batches of {run['trainer.micro_batch_size']} on each rank makes "
            f"{times}; remove it from the file."
        )


def _precision(file: dict[str, Any], run: dict[str, Any]) -> Iterator[str]:
    name = run.get("precision.name")
    for key in (FP16, BF16):
        stated = _mapping(file.get(key)).get("enabled")
        if name is not None and stated is not None and stated is not (name == key):
            advice = f", or set precision={key}" if stated is True else ""
            yield f"{key}.enabled is {show(stated)}, but precision={name}; remove it from the file{advice}."


def _enabled(file: dict[str, Any], key: str) -> bool:
    return _mapping(file.get(key)).get("enabled") is True


def _optimizer(section: dict[str, Any], run: dict[str, Any]) -> Iterator[str]:
    target = run.get("optimizer._target_")
    if not section or not isinstance(target, str):
        return
    params = _mapping(section.get("params"))
    kind = target.rpartition(".")[2].lower()
    stated = str(section.get("type", kind))
    decoupled = stated.lower() == "adam" and params.get("adam_w_mode", True) is True  # DeepSpeed's Adam is AdamW
    if ("adamw" if decoupled else stated.lower()) != kind:
        yield f"optimizer.type is {stated}, but optimizer={kind}; remove it from the file, or choose another optimizer."
        return
    known = signature(target)
    defaults = {parameter.name: parameter.default for parameter in known.parameters} if known else {}
    for key, value in params.items():
        own = run.get(f"optimizer.{key}", defaults.get(key))
        if key in IMPLEMENTATION or _equal(value, own):
            continue
        if key in defaults or not known:
            yield _contradiction(f"optimizer.params.{key}", value, f"optimizer.{key}", own)
        elif value not in (None, False):
            yield f"optimizer.params.{key} is {show(value)}, but {kind} takes no {key}; remove it from the file."


def _scheduler(section: dict[str, Any], run: dict[str, Any]) -> Iterator[str]:
    target = run.get("scheduler._target_", "launcher.optim.schedulers.constant")
    if not section or "trainer.max_steps" not in run:
        return
    kind, stated = target.rpartition(".")[2], str(section.get("type"))
    expected = SCHEDULERS.get(stated.lower())
    if expected != kind:
        advice = f", or set scheduler={expected}" if expected else ""
        yield f"scheduler.type is {stated}, but scheduler={kind}; remove it from the file{advice}."
        return
    for key, value in _mapping(section.get("params")).items():
        name = f"scheduler.params.{key}"
        if key in FIXED_SCHEDULER_VALUES:
            if not _equal(value, FIXED_SCHEDULER_VALUES[key]):
                yield f"{name} is {show(value)}, but {show(FIXED_SCHEDULER_VALUES[key])} here; remove it from the file."
        elif key not in SCHEDULER_KEYS:
            yield f"{name} is not supported; remove it from the file{hint(key, SCHEDULER_KEYS)}"
        elif not _equal(value, run.get(SCHEDULER_KEYS[key])):
            yield _contradiction(name, value, SCHEDULER_KEYS[key], run.get(SCHEDULER_KEYS[key]))


def _options(file: dict[str, Any], path: Path, strategy: dict[str, Any]) -> Iterator[Fault]:
    """Options that are set beside the file, which must have the same values."""
    known = signature(TARGET)
    for option in known.parameters if known else ():
        value = strategy.get(option.name, option.default)
        if option.name in ("config_file", "timeout") or _equal(value, option.default):
            continue
        where = place(option.name)
        stated: Any = file
        for part in where:
            stated = _mapping(stated).get(part)
        stated = _mapping(stated).get("device") == "cpu" if option.name.startswith("offload") else stated
        if not _equal(value, stated):
            text = f"{KEY}={path} has {'.'.join(where)}={show(stated)}; set it there, or remove strategy.{option.name}."
            yield Fault(f"strategy.{option.name}", show(value), text)


def place(option: str) -> tuple[str, ...]:
    """Where an option of the strategy is in DeepSpeed's configuration."""
    if option in ("loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis", "min_loss_scale"):
        return FP16, option
    return (option,) if option == "wall_clock_breakdown" else (ZERO, option.removeprefix("zero_"))


def _contradiction(key: str, stated: Any, own: str, value: Any) -> str:
    return f"{key} is {show(stated)}, but {own}={show(value)}; remove it from the file, or set {own}={show(stated)}."


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _equal(stated: Any, value: Any) -> bool:
    if isinstance(stated, list) and isinstance(value, list | tuple):
        return len(stated) == len(value) and all(map(_equal, stated, value))
    numbers = [isinstance(side, int | float) and not isinstance(side, bool) for side in (stated, value)]
    return (
        math.isclose(stated, value, rel_tol=1e-9) if all(numbers) else type(stated) is type(value) and stated == value
    )
