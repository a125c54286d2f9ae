"""DeepSpeed's configuration, completed with what the run decides."""

from typing import Any

from launcher.optim.precision import Precision
from launcher.strategies.deepspeed.strategy import DeepSpeedStrategy, complete
from launcher.strategies.step import StepPlan

PLAN = StepPlan(grad_accum_steps=2, max_grad_norm=1.0, micro_batch_size=4)
"""Plan of two ranks with a batch of 16."""


def completed(
    config: dict[str, Any], precision: str = "fp32", plan: StepPlan = PLAN
) -> dict[str, Any]:
    return complete(config, plan, Precision(precision), 2)  # type: ignore[arg-type]


def test_the_run_decides_on_batch_clipping_and_number_format():
    config = completed({"zero_optimization": {"stage": 3}})
    assert config["zero_optimization"] == {"stage": 3}
    sizes = (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    )
    assert [config[key] for key in sizes] == [16, 4, 2, 1.0]
    assert config["fp16"] == config["bf16"] == {"enabled": False}
    assert completed({}, "bf16")["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert completed({"fp16": {"hysteresis": 3}}, "fp16")["fp16"] == {
        "enabled": True,
        "hysteresis": 3,
    }
    assert completed({}, plan=StepPlan(micro_batch_size=4))["gradient_clipping"] == 0.0


def test_auto_is_left_to_deepspeed():
    assert DeepSpeedStrategy(reduce_bucket_size=5e8).options(on_gpu=False)["zero_optimization"] == {
        "stage": 2, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": 5e8,
        "sub_group_size": 1e9, "stage3_prefetch_bucket_size": 5e7,
        "stage3_param_persistence_threshold": 1e5,
        "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    }  # fmt: skip
    auto = DeepSpeedStrategy(
        reduce_bucket_size="auto", overlap_comm="auto", offload_param=True
    ).options(on_gpu=True)
    assert not {"reduce_bucket_size", "overlap_comm"} & auto["zero_optimization"].keys()
    assert auto["zero_optimization"]["offload_param"] == {"device": "cpu", "pin_memory": True}
