"""A DeepSpeed configuration file: what agrees with the run is taken, all contradictions are reported at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.config.checks import crosschecks
from launcher.config.deepspeed_file import TARGET, read_file
from launcher.errors import ConfigError

ADAMW = {"_target_": "launcher.optim.optimizers.adamw", "lr": 0.001, "betas": [0.9, 0.95], "weight_decay": 0.1}
WARMUP = {"_target_": "launcher.optim.schedulers.constant_with_warmup", "max_steps": 100, "warmup_steps": 10}
STRATEGY = {"_target_": TARGET, "zero_stage": 2, "offload_optimizer": False, "overlap_comm": True}
RUN: dict[str, Any] = {
    "data": {"batch_size": 16},
    "trainer": {"max_steps": 100, "micro_batch_size": 4, "max_grad_norm": 1.0, "no_sync_accumulate": True},
    "precision": {"name": "fp32"},
    "optimizer": ADAMW,
    "scheduler": WARMUP,
    "strategy": STRATEGY,
}
AGREEING = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_clipping": 1,
    "fp16": {"enabled": False, "loss_scale_window": 1000},
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "offload_param": {"device": "cpu"}},
    "optimizer": {
        "type": "Adam",
        "params": {
            "lr": 1e-3,
            "betas": [0.9, 0.95],
            "eps": 1e-8,
            "weight_decay": "auto",
            "torch_adam": True,
            "amsgrad": False,
        },
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 10, "warmup_type": "linear"},
    },
}


def faults(path: Path, content: Any, run: dict[str, Any] = RUN, **strategy: Any) -> list[str]:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return [str(one) for one in crosschecks({**run, "strategy": {**STRATEGY, "config_file": str(path), **strategy}})]


def test_a_file_that_agrees_is_taken(tmp_path: Path) -> None:
    assert faults(tmp_path / "ds.json", AGREEING) == []
    assert "weight_decay" not in read_file(tmp_path / "ds.json")["optimizer"]["params"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "cannot be read as JSON"),
        ([1], "should hold an object of keys and values"),
        ({"bf16": 1, "optimizer": [2]}, "bf16 should hold an object"),
        ({"train_batch_size": 32}, "train_batch_size is 32, but data.batch_size=16; remove it from the file, or set"),
        ({"train_micro_batch_size_per_gpu": 1}, "but trainer.micro_batch_size=4"),
        (
            {"gradient_clipping": 0.5},
            "but trainer.max_grad_norm=1.0; remove it from the file, or set trainer.max",
        ),
        ({"bf16": {"enabled": True}}, "but precision=fp32; remove it from the file, or set precision=bf16"),
        ({"bfloat16": {"enabled": True}}, "but precision=fp32; remove it from the file, or set precision=bf16"),
        ({"optimizer": {"type": "SGD"}}, "optimizer.type is SGD, but optimizer=adamw"),
        (
            {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}},
            "optimizer.type is Adam, but optimizer=a",
        ),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 0.1}}}, "lr is 0.1, but optimizer.lr=0.001"),
        ({"optimizer": {"type": "AdamW", "params": {"eps": 0.1}}}, "eps is 0.1, but optimizer.eps=1e-08"),
        (
            {"optimizer": {"type": "AdamW", "params": {"amsgrad": True}}},
            "but adamw takes no amsgrad; remove it",
        ),
        (
            {"scheduler": {"type": "WarmupDecayLR"}},
            "but scheduler=constant_with_warmup; remove it from the file, or",
        ),
        ({"scheduler": {"type": "OneCycle"}}, "scheduler.type is OneCycle, but scheduler=constant_with_warmup"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}}, "but scheduler.warmup_steps=10"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}}, "is 'log', but 'linear' here"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup": 5}}}, "scheduler.params.warmup is not supported"),
        ({"activation_checkpointing": {}}, "set trainer.activation_checkpointing instead"),
        ({"zero_optimisation": {"stage": 1}}, "is not supported; remove it from the file; did you mean zero_optimizat"),
        ({"zero_optimization": {"zero_hpz_partition_size": 2}}, "zero_hpz_partition_size=2 is not supported"),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "is supported with device cpu or none"),
        ({"zero_optimization": {"compute_grad_norm": False}}, "compute_grad_norm=false is not supported"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, "is supported with the value fp32"),
    ],
)
def test_a_contradiction_is_refused(tmp_path: Path, content: Any, sentence: str) -> None:
    path = tmp_path / "ds.json"
    first = faults(path, content)[0]
    assert first.startswith(f"strategy.config_file={path}: ")
    assert sentence in first


def test_all_contradictions_are_reported_at_once(tmp_path: Path) -> None:
    content = {
        "train_batch_size": 1, "tensorboard": {}, "fp16": {"enabled": True}, "zero_optimization": {"zenflow": {}},
        "optimizer": {"type": "AdamW", "params": {"lr": 1, "betas": [0, 0]}}, "scheduler": {"type": "WarmupCosineLR"},
    }  # fmt: skip
    assert len(faults(tmp_path / "ds.json", content, offload_param=True)) == 9


def test_an_option_beside_a_file_has_to_agree(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    content = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "reduce_bucket_size": 1000}}
    assert faults(path, content, zero_stage=3, offload_param=True, reduce_bucket_size=1e3) == []
    (fault,) = faults(path, content, zero_stage=1)
    assert fault == (
        f"strategy.zero_stage=1: strategy.config_file={path} has zero_optimization.stage=3; set it there, or remove "
        "strategy.zero_stage."
    )
    (fault,) = faults(path, {}, hysteresis=5)
    assert "has fp16.hysteresis=null; set it there" in fault


def test_a_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"nowhere.json: cannot be read as JSON \(No such file or directory\)"):
        read_file(Path("nowhere.json"))


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ({"zero_stage": 0, "offload_optimizer": True}, "strategy.offload_optimizer=true: needs strategy.zero_stage=1"),
        ({"zero_stage": 2, "offload_param": True}, "strategy.offload_param=true: needs strategy.zero_stage=3"),
    ],
)
def test_offloading_needs_something_sharded(strategy: dict[str, Any], sentence: str) -> None:
    (fault,) = map(str, crosschecks({**RUN, "strategy": {**STRATEGY, **strategy}}))
    assert fault.startswith(sentence)


def test_deepspeed_decides_when_gradients_are_exchanged() -> None:
    (fault,) = map(str, crosschecks({**RUN, "trainer": {**RUN["trainer"], "no_sync_accumulate": False}}))
    assert fault.startswith("trainer.no_sync_accumulate=false: DeepSpeed's stage decides")
