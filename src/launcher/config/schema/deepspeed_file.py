"""Read a DeepSpeed configuration file (`strategy.config_file`) and check its keys.

The file tunes DeepSpeed. Keys that Launcher sets are rejected, all in one report. A value of "auto"
is left out. https://www.deepspeed.ai/docs/config-json/ documents the keys.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.config.messages import ConfigIssue, hint, raise_issues, show, to_override_text
from launcher.config.schema.declared import declared
from launcher.config.schema.signature import signature_of
from launcher.config.tree import Node, Tree, get
from launcher.process.files import expand

MAPPING = "should hold an object of keys and values."
KEY = "strategy.config_file"
ZERO = "zero_optimization"
FP16 = "fp16"
BF16 = "bf16"
SUPPORTED = frozenset({
    FP16, BF16, ZERO, "comms_logger", "communication_data_type", "dump_state",
    "flops_profiler", "gradient_predivide_factor", "memory_breakdown", "prescale_gradients",
    "steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
})  # fmt: skip
"""Supported keys. Other keys would be ignored, or would change the content of a checkpoint."""
SET_BY_LAUNCHER = {
    "train_batch_size": "data.batch_size",
    "train_micro_batch_size_per_gpu": "trainer.micro_batch_size",
    "gradient_accumulation_steps": "trainer.micro_batch_size",
    "gradient_clipping": "trainer.max_grad_norm",
    "optimizer": "optimizer",
    "scheduler": "scheduler",
    "fp16.enabled": "precision",
    "bf16.enabled": "precision",
    "amp": "precision",
    "torch_autocast": "precision",
    "activation_checkpointing": "trainer.activation_checkpointing",
    "compile": "trainer.compile",
    "tensorboard": "tracker",
    "wandb": "tracker",
    "csv_monitor": "tracker",
}
"""Keys of the file, and the key to set instead."""
ALLOWED_ZERO_VALUES: dict[str, tuple[object, ...]] = {
    "compute_grad_norm": (True,),
    "elastic_checkpoint": (False,),
    "mics_shard_size": (-1,),
    "zenflow": (None,),
    "zero_hpz_partition_size": (1,),
    "zero_quantized_gradients": (False,),
    "zero_quantized_nontrainable_weights": (False,),
    "zero_quantized_weights": (False,),
    **{f"offload_{part}.device": ("none", "cpu") for part in ("optimizer", "param")},
    **{f"offload_{part}.ratio": (1,) for part in ("optimizer", "param")},
}
"""Settings with other values of which the shards on each rank would differ from a checkpoint's, or
which Launcher does not support."""


def deepspeed_issues(strategy: Any, syncs_every_micro_batch: object) -> Iterator[ConfigIssue]:
    """The errors of `strategy=deepspeed`."""
    if not declared(get(strategy, "_target_"), "is_deepspeed"):
        return
    stage = strategy.get("zero_stage")
    if strategy.get("offload_optimizer") is True and stage == 0:
        text = "needs strategy.zero_stage=1, 2 or 3."
        yield ConfigIssue("strategy.offload_optimizer", "true", text)
    if strategy.get("offload_param") is True and stage != 3:
        text = "needs strategy.zero_stage=3, which shards parameters."
        yield ConfigIssue("strategy.offload_param", "true", text)
    if syncs_every_micro_batch:
        text = (
            "DeepSpeed's stage decides when gradients are exchanged (once a step with 0 and 1, with"
            " each micro-batch with 2 and 3); set trainer.sync_every_micro_batch=false."
        )
        yield ConfigIssue("trainer.sync_every_micro_batch", "true", text)
    if isinstance(strategy.get("config_file"), str):
        path = Path(strategy["config_file"])
        yield from _parse(path)[1]
        yield from _options(path, strategy)


def read_file(path: Path) -> Tree:
    """Return the file's content without values of "auto", and report every error in it."""
    file, issues = _parse(path)
    raise_issues(issues)
    return file


def _parse(path: Path) -> tuple[Tree, list[ConfigIssue]]:
    """Return the file's content without values of "auto", and the errors in it."""
    try:
        config = json.loads(expand(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return {}, [ConfigIssue(KEY, str(path), f"cannot be read as JSON ({reason}).")]
    if not isinstance(config, dict):
        return {}, [ConfigIssue(KEY, str(path), MAPPING)]
    config = _without_auto(config)
    sections = [key for key in (FP16, BF16, ZERO) if config.get(key)]
    wrong = [key for key in sections if not isinstance(config[key], dict)]
    texts = [f"{key} {MAPPING}" for key in wrong] or _find_unsupported(config)
    return config, [ConfigIssue(KEY, str(path), text) for text in texts]


def _without_auto(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _without_auto(item) for key, item in value.items() if item != "auto"}
    return value


def _find_unsupported(file: Node) -> Iterator[str]:
    for key, setting in SET_BY_LAUNCHER.items():
        if get(file, key) is not None:
            yield f"{key} is set by Launcher; remove it from the file, and set {setting} instead."
    for key in file:
        if key not in SUPPORTED and key not in SET_BY_LAUNCHER:
            yield f"{key} is not supported; remove it from the file{hint(key, SUPPORTED)}"
    zero = get(file, ZERO, {})
    for key in ("offload_optimizer", "offload_param"):
        if not isinstance(get(zero, key, {}), dict):
            yield f"{ZERO}.{key} {MAPPING}"
    for key, allowed in ALLOWED_ZERO_VALUES.items():
        if (value := get(zero, key)) is not None and value not in allowed:
            yield (
                f"{ZERO}.{key}={show(value)} is not supported; remove it from the file, or use"
                f" {' or '.join(map(to_override_text, allowed))}."
            )


def _options(path: Path, strategy: Node) -> Iterator[ConfigIssue]:
    """Reject options that are set next to the file, which replaces them all."""
    for option in signature_of(strategy["_target_"]).parameters:
        value = strategy.get(option.name, option.default)
        if option.name not in ("config_file", "timeout") and value != option.default:
            text = f"{KEY}={path} replaces this option; set it in the file."
            yield ConfigIssue(f"strategy.{option.name}", show(value), text)
