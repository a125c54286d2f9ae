"""Hooks under every strategy: neither an interruption nor their order nor those that observe change
a number."""

import pytest

from support.ranks import Task, by_name, task

HOOKS = {
    "checkpointing": [],
    "logging": ["interval=2"],
    "evaluation": ["interval=2"],
    "ema": ["decay=[0.9,0.99]", "warmup=3", "evaluate=true"],
    # a threshold so low that some of the six steps are skipped
    "skip_spikes": ["sigmas=0.01", "warmup=2", "max_in_row=1"],
    "memory": ["interval=2"],
    "throughput": ["interval=2"],
    "gradients": ["interval=2"],
    "nan_report": ["max_reports=1"],
    "samples": ["prompts='3 4'", "interval=4", "max_new_tokens=14"],
    "watchdog": ["factor=100"],
}
AVERAGING = ["checkpointing", "logging", "evaluation", "ema"]
STEERING = [*AVERAGING, "skip_spikes"]
STRATEGIES = {"none": 1, "ddp": 2, "fsdp": 2}
INTERRUPTED = ("none", "fsdp")
"""Under ddp a hook sees the tensors of none, and the collectives of fsdp."""


def overrides(strategy: str, names: list[str]) -> list[str]:
    settings = [f"hooks.{name}.{setting}" for name in names for setting in HOOKS[name]]
    hooks = f"hooks=[{','.join(names)}]"
    return [f"strategy={strategy}", hooks, "trainer.micro_batch_size=3", *settings]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two ranks, and one that reads what they have saved."""
    folder = tmp_path_factory.mktemp("hooks")
    saved = folder / "run" / "name" / "id"
    tasks: dict[int, dict[str, Task]] = {2: {}, 1: {}}
    for strategy, count in STRATEGIES.items():
        if strategy in INTERRUPTED:
            tasks[count][strategy] = task(
                "whole_and_interrupted", folder / strategy, *overrides(strategy, STEERING),
                of_parts=overrides(strategy, [*HOOKS][::-1]),
            )  # fmt: skip
        watched = overrides(strategy, ["checkpointing", "nan_report"])
        tasks[count][f"{strategy} broken"] = task("broken", folder / f"{strategy}-broken", *watched)
    tasks[2]["saved"] = task("saved", saved, *overrides("fsdp", AVERAGING))
    tasks[2]["stored"] = "stored", {"folder": str(saved)}
    for count, reader in ((2, "ddp"), (1, "none")):
        # A copy of a run keeps its name.
        tasks[count][f"{reader} averages"] = task(
            "hook_values", folder / f"of {reader}" / "name" / "id", *overrides(reader, AVERAGING),
            source=str(saved),
        )  # fmt: skip
    pair, alone = by_name(folder, *tasks.items())
    return pair | alone


@pytest.mark.parametrize("strategy", INTERRUPTED)
def test_an_interruption_the_order_and_observing_hooks_leave_no_trace(results, strategy):
    """A training with the hooks that steer, and one with all of them in another order that is
    interrupted."""
    for of_rank in results[strategy]:
        assert of_rank["first"]["stopped"] == 15 and of_rank["second"]["step"] == 6
        assert of_rank["second"]["digest"] == of_rank["whole"]["digest"]


def test_nan_reports_under_every_strategy(results):
    for strategy, world_size in STRATEGIES.items():
        for of_rank in results[f"{strategy} broken"]:
            (line,) = of_rank
            rank = f"Step 3, rank {world_size - 1}: "
            assert line.startswith(f"{rank}the output of blocks.1.ffn.up (Linear) is the first")


def test_averages_load_under_another_strategy(results):
    stored, _ = results["stored"]
    values = [*results["ddp averages"], *results["none averages"]]
    expected = {
        name: tensor for name, tensor in stored["tensors"].items() if name.startswith("ema/")
    }
    assert len(expected) > 20 and values == [expected] * 3
    assert {name: stored["written"][name] for name in expected} == {
        name: stored["numel"][name] for name in expected
    }
