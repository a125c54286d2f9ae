"""A DeepSpeed configuration file: the keys that it may have."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.config.options import own_target
from launcher.config.schema.deepspeed_file import SET_BY_LAUNCHER, ZERO, read_file
from launcher.config.schema.validate import crosschecks
from launcher.errors import ConfigError

DEEPSPEED = own_target("strategy", "deepspeed")
STRATEGY = {
    "_target_": DEEPSPEED, "zero_stage": 2, "offload_optimizer": False, "overlap_comm": True
}  # fmt: skip
RUN: dict[str, Any] = {
    "data": {"batch_size": 16},
    "trainer": {"max_steps": 100, "micro_batch_size": 4, "max_grad_norm": 1.0}
    | {"sync_every_micro_batch": False},
    "precision": {"name": "fp32"},
    "strategy": STRATEGY,
}
ALLOWED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "fp16": {"enabled": "auto", "loss_scale_window": 1000},
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": 5e8,
        "offload_param": {"device": "cpu"},
    },
    "wall_clock_breakdown": False,
}
"""A file without a key that Launcher sets."""


def faults(path: Path, content: Any, run: dict[str, Any] = RUN, **strategy: Any) -> list[str]:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return [
        str(one)
        for one in crosschecks(
            {**run, "strategy": {**STRATEGY, "config_file": str(path), **strategy}}
        )
    ]


def test_file_without_keys_of_launcher_is_taken(tmp_path):
    assert faults(tmp_path / "ds.json", ALLOWED) == []
    file = read_file(tmp_path / "ds.json")
    assert file["fp16"] == {"loss_scale_window": 1000}
    assert "train_batch_size" not in file


@pytest.mark.parametrize("key", SET_BY_LAUNCHER)
def test_key_that_launcher_sets_is_rejected_by_name(tmp_path, key):
    section, _, name = key.partition(".")
    path = tmp_path / "ds.json"
    (fault,) = faults(path, {**ALLOWED, section: {name: True} if name else 1})
    assert fault.startswith(f"strategy.config_file={path}: {key} is set by Launcher")
    assert f"set {SET_BY_LAUNCHER[key]} instead" in fault
    with pytest.raises(ConfigError, match=f"{key} is set by Launcher"):
        read_file(path)


@pytest.mark.parametrize(("content", "message"), [
    ("{", "cannot be read as JSON"),
    ([1], "should hold an object of keys and values"),
    ({"bf16": 1}, "bf16 should hold an object"),
    ({"zero_optimisation": {"stage": 1}}, "did you mean zero_optimization?"),
    ({ZERO: {"zero_hpz_partition_size": 2}}, "zero_hpz_partition_size=2 is not supported"),
    ({ZERO: {"offload_param": {"device": "nvme"}}}, "offload_param.device='nvme' is not supported"),
    ({ZERO: {"offload_param": "cpu"}}, "offload_param should hold an object"),
    ({ZERO: {"compute_grad_norm": False}}, "compute_grad_norm=false is not supported"),
    ({"data_types": {"grad_accum_dtype": "bf16"}}, "data_types is not supported"),
])  # fmt: skip
def test_file_that_is_not_supported_is_rejected(tmp_path, content, message):
    path = tmp_path / "ds.json"
    first = faults(path, content)[0]
    assert first.startswith(f"strategy.config_file={path}: ")
    assert message in first


def test_all_faults_of_a_file_are_reported_at_once(tmp_path):
    content = {
        "train_batch_size": 1,
        "fp16": {"enabled": True},
        "zero_optimization": {"zenflow": {}},
        "x": 1,
    }
    assert len(faults(tmp_path / "ds.json", content, offload_param=True)) == 6


def test_option_next_to_a_file_is_rejected(tmp_path):
    path = tmp_path / "ds.json"
    assert faults(path, ALLOWED, timeout=60.0) == []
    (fault,) = faults(path, ALLOWED, zero_stage=1)
    assert fault.startswith(f"strategy.zero_stage=1: strategy.config_file={path} replaces this")


def test_a_missing_file():
    with pytest.raises(
        ConfigError, match=r"nowhere.json: cannot be read as JSON \(No such file or directory\)"
    ):
        read_file(Path("nowhere.json"))


@pytest.mark.parametrize(("strategy", "key", "stage"), [
    ({"zero_stage": 0, "offload_optimizer": True}, "strategy.offload_optimizer=true", 1),
    ({"zero_stage": 2, "offload_param": True}, "strategy.offload_param=true", 3),
])  # fmt: skip
def test_offloading_needs_something_sharded(strategy, key, stage):
    (fault,) = map(str, crosschecks({**RUN, "strategy": {**STRATEGY, **strategy}}))
    assert fault.startswith(f"{key}: needs strategy.zero_stage={stage}")


def test_deepspeed_decides_when_gradients_are_exchanged():
    (fault,) = map(
        str, crosschecks({**RUN, "trainer": {**RUN["trainer"], "sync_every_micro_batch": True}})
    )
    assert fault.startswith("trainer.sync_every_micro_batch=true: DeepSpeed's stage decides")
