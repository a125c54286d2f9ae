"""Hooks under every strategy: neither an interruption nor their order nor those that observe change
a number."""

from functools import cache

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
    root = tmp_path_factory.mktemp("averages")

    @cache
    def of(world_size):
        if world_size == 1:
            # It reads what two ranks have saved.
            of(2)
        folder = tmp_path_factory.mktemp(f"ranks-{world_size}")
        tasks: dict[str, Task] = {}
        for strategy in (name for name, count in STRATEGIES.items() if count == world_size):
            if strategy in INTERRUPTED:
                every = overrides(strategy, [*HOOKS][::-1])
                tasks[strategy] = task(
                    "whole_and_interrupted", folder / strategy, *overrides(strategy, STEERING),
                    of_parts=every,
                )  # fmt: skip
            watched = overrides(strategy, ["checkpointing", "nan_report"])
            tasks[f"{strategy} broken"] = task("broken", folder / f"{strategy}-broken", *watched)
        saved = root / "run" / "name" / "id"
        reader = "none" if world_size == 1 else "ddp"
        if world_size == 2:
            tasks["saved"] = task("saved", saved, *overrides("fsdp", AVERAGING))
            tasks["stored"] = "stored", {"folder": str(saved)}
        # A copy of a run keeps its name.
        tasks[f"{reader} averages"] = task(
            "hook_values", root / reader / "name" / "id", *overrides(reader, AVERAGING),
            source=str(saved),
        )  # fmt: skip
        return by_name(world_size, folder, tasks)

    return of


@pytest.mark.parametrize("strategy", INTERRUPTED)
def test_an_interruption_the_order_and_observing_hooks_leave_no_trace(results, strategy):
    """A training with the hooks that steer, and one with all of them in another order that is
    interrupted."""
    for of_rank in results(STRATEGIES[strategy])[strategy]:
        assert of_rank["first"]["stopped"] == 15 and of_rank["second"]["step"] == 6
        assert of_rank["second"]["digest"] == of_rank["whole"]["digest"]


def test_nan_reports_under_every_strategy(results):
    for strategy, world_size in STRATEGIES.items():
        for of_rank in results(world_size)[f"{strategy} broken"]:
            (line,) = of_rank
            rank = f"Step 3, rank {world_size - 1}: "
            assert line.startswith(f"{rank}the output of blocks.1.ffn.up (Linear) is the first")


def test_averages_load_under_another_strategy(results):
    stored, _ = results(2)["stored"]
    values = [*results(2)["ddp averages"], *results(1)["none averages"]]
    expected = {
        name: tensor for name, tensor in stored["tensors"].items() if name.startswith("ema/")
    }
    assert len(expected) > 20 and values == [expected] * 3
    assert {name: stored["written"][name] for name in expected} == {
        name: stored["numel"][name] for name in expected
    }
