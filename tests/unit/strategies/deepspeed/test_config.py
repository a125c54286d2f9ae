"""DeepSpeed's configuration: what options and files make of it, and what they must not contradict."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.optim.precision import Precision
from launcher.strategies.deepspeed import DEFAULTS, DeepSpeedStrategy
from launcher.strategies.deepspeed.config import complete, from_options, read_file
from launcher.strategies.step import StepPlan

PLAN = StepPlan(grad_accum_steps=2, max_grad_norm=1.0, micro_batch_size=4)
"""On two ranks, a batch of 16."""


def made(options: dict[str, Any] | None = None, precision: str = "fp32", plan: StepPlan = PLAN) -> dict[str, Any]:
    return complete(from_options({**DEFAULTS, **(options or {})}, on_gpu=False), plan, Precision(precision), 2)  # type: ignore[arg-type]


def test_defaults() -> None:
    config = made()
    assert {key: config[key] for key in ("train_batch_size", "train_micro_batch_size_per_gpu")} == {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 4,
    }
    assert (config["gradient_accumulation_steps"], config["gradient_clipping"]) == (2, 1.0)
    assert config["wall_clock_breakdown"] is False
    assert config["zero_optimization"] == {
        "stage": 2,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 5e8,
        "sub_group_size": 1e9,
        "stage3_prefetch_bucket_size": 5e7,
        "stage3_param_persistence_threshold": 1e5,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    assert config["fp16"] == config["bf16"] == {"enabled": False}


def test_number_formats() -> None:
    assert made(precision="bf16")["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert made(precision="fp16")["fp16"] == {
        "enabled": True,
        "loss_scale": 0.0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
        "min_loss_scale": 1.0,
    }
    assert made(plan=StepPlan(micro_batch_size=4))["gradient_clipping"] == 0.0


def test_offloading() -> None:
    zero = made({"zero_stage": 3, "offload_optimizer": True, "offload_param": True})["zero_optimization"]
    assert zero["offload_optimizer"] == zero["offload_param"] == {"device": "cpu", "pin_memory": False}
    with pytest.raises(ConfigError, match=r"strategy.offload_optimizer=true: needs strategy.zero_stage=1, 2 or 3"):
        made({"zero_stage": 0, "offload_optimizer": True})
    with pytest.raises(ConfigError, match=r"strategy.offload_param=true: needs strategy.zero_stage=3"):
        made({"zero_stage": 2, "offload_param": True})


FILE = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 1,
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "offload_param": {"device": "cpu"}},
}


def test_a_file_is_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(FILE))
    config = complete(read_file(path), PLAN, Precision("bf16"), 2, path)
    assert config["train_batch_size"] == 16
    assert config["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert config["zero_optimization"] == {"stage": 3, "offload_param": {"device": "cpu"}}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "cannot be read as JSON"),
        ([1], "should hold an object of keys and values"),
        ({"train_batch_size": 32}, "train_batch_size is 32, but data.batch_size=16; take it out of the file"),
        ({"train_micro_batch_size_per_gpu": 1}, "but trainer.micro_batch_size=4"),
        ({"gradient_accumulation_steps": 8}, "data.batch_size=16 over 2 ranks in micro-batches of 4 makes 2"),
        ({"gradient_clipping": 0.5}, "but trainer.max_grad_norm=1.0"),
        ({"bf16": {"enabled": True}}, "but precision=fp32; take it out of the file, or take precision=bf16"),
        ({"bfloat16": {"enabled": True}}, "but precision=fp32; take it out of the file, or take precision=bf16"),
        ({"fp16": {"enabled": True}}, "or take precision=fp16"),
        ({"bf16": 1}, "bf16 should hold an object"),
        ({"optimizer": {"type": "AdamW"}}, "take optimizer out of the file; here it is optimizer=adamw"),
        ({"scheduler": {"type": "WarmupLR"}}, "scheduler=constant_with_warmup scheduler.warmup_steps="),
        ({"activation_checkpointing": {}}, "trainer.activation_checkpointing="),
        ({"zero_optimisation": {"stage": 1}}, "cannot be had here; take it out of the file; did you mean zero_optimiz"),
        ({"zero_optimization": {"zero_hpz_partition_size": 2}}, "zero_hpz_partition_size=2 cannot be had here"),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "offload_param can be had with device cpu or"),
        ({"zero_optimization": {"compute_grad_norm": False}}, "compute_grad_norm=false cannot be had here"),
    ],
)
def test_a_file_that_contradicts_is_refused(tmp_path: Path, content: Any, sentence: str) -> None:
    path = tmp_path / "ds.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        complete(read_file(path), PLAN, Precision(), 2, path)
    (said,) = caught.value.sentences
    assert said.startswith(f"strategy.config_file={path}: ")
    assert sentence in said


def test_a_file_has_all_settings(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text("{}")
    strategy = DeepSpeedStrategy(zero_stage=3, config_file=str(tmp_path / "ds.json"))
    with pytest.raises(ConfigError, match=r"strategy.zero_stage=3: .* has all of DeepSpeed's settings; put it there"):
        strategy.given()


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"nowhere.json: cannot be read as JSON \(No such file or directory\)"):
        read_file(Path("nowhere.json"))
