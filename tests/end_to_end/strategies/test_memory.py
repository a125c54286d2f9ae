"""The estimated memory of a step, compared with what is counted in training."""

from pathlib import Path
from typing import Any

import pytest

from support.ranks import together

GPT = ["model.dim=64", "model.num_layers=4", "data.vocab_size=256", "data.seq_len=48"]
LARGE = [*GPT, "trainer.max_steps=2"]
BOTH = {
    "plain": [],
    "accumulated": ["trainer.micro_batch_size=3"],
    "bf16": ["precision=bf16"],
    "recomputed": ["trainer.activation_checkpointing=full"],
    "sgd": ["optimizer=sgd"],
    "small batch": ["data.batch_size=2"],
}
CASES: dict[str, dict[str, list[str]]] = {
    "none": BOTH,
    "ddp": {"plain": [], "copies": ["strategy.gradient_as_bucket_view=false"]},
    "fsdp": {
        **{name: BOTH[name] for name in ("bf16", "recomputed")},
        "kept": ["strategy.sharding=shard_grad_op"],
        "full": ["strategy.sharding=no_shard"],
        "one unit": ["strategy.min_params=0"],
    },
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    folder, results = tmp_path_factory.mktemp("memory"), {}
    for count, strategies in ((1, ["none"]), (2, ["ddp", "fsdp"])):
        tasks: dict[str, tuple[str, dict[str, Any]]] = {}
        for strategy in strategies:
            for name, overrides in CASES[strategy].items():
                words = [*LARGE, f"strategy={strategy}", *overrides]
                key = f"{strategy} {name}"
                tasks[key] = "counted_memory", {"folder": str(folder / key), "overrides": words}
        done = together(count, folder / str(count), list(tasks.values()))
        results |= {key: each[0] for key, each in zip(tasks, done, strict=True)}
    return results


@pytest.mark.parametrize(
    "key", [f"{strategy} {name}" for strategy, cases in CASES.items() for name in cases]
)
def test_the_estimate_is_within_a_tenth(found: dict[str, list[int]], key: str) -> None:
    counted, estimated = found[key]
    assert estimated == pytest.approx(counted, rel=0.1)


def test_a_step_that_does_not_fit_is_reported(tmp_path: Path) -> None:
    import logging

    from launcher.errors import ConfigError, TrainingError
    from launcher.jobs.check import CheckJob
    from support.composition import composed

    digits = ["model=mlp", "data=digits", f"paths.outputs={tmp_path / 'outputs'}"]
    config = composed([*digits, "strategy=fsdp"])
    assert CheckJob("1GB", ranks=64).run(config)["memory"] < 0.01
    with pytest.raises(TrainingError, match=r"^job\.device_memory=1MB: a step needs \d"):
        CheckJob("1MB", ranks=4).run(config)
    for job, words, message in (
        (CheckJob("much"), [], "job.device_memory=much: should be a number and a unit"),
        (CheckJob(ranks=2), [], "job.ranks=2: is for an estimate"),
        (
            CheckJob("1GB", ranks=2),
            ["strategy=none"],
            "job.device_memory: strategy=none uses one rank, not 2; use",
        ),
        (CheckJob("1GB", ranks=3), ["strategy=ddp"], "data.batch_size=64: is not divisible by"),
        (CheckJob("1GB"), ["strategy=deepspeed"], "job.device_memory: the memory of strategy="),
        (CheckJob("1GB"), ["optimizer=lbfgs"], "job.device_memory: the memory with LBFGS"),
        (CheckJob("1GB"), ["trainer.lanes=2"], "job.device_memory: the memory with trainer.lanes"),
    ):
        with pytest.raises(ConfigError) as rejected:
            job.run(composed([*digits, "strategy=none", *words]))
        assert str(rejected.value).startswith(message)
    logging.shutdown()
    assert not list(tmp_path.iterdir())
