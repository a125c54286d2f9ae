"""Hooks on two ranks, and one that ends a command."""

import math
from importlib.util import find_spec

import pytest

from support.measuring import validated
from support.ranks import Task, together
from support.runner import launch, metrics, record, steps, stop_at

STEERED = [
    "digits", "strategy=ddp", "strategy.timeout=60", "trainer.max_steps=30", "optimizer.lr=0.3",
    "hooks=[logging,checkpointing,early_stopping]", "hooks.logging.interval=1",
    "hooks.logging.sync=false",
    "hooks.early_stopping.metric=train/loss", "hooks.early_stopping.patience=1",
    "hooks.checkpointing.best_metric=train/accuracy",
]  # fmt: skip
VALIDATED = [
    "data.num_val_samples=30", "hooks=[evaluation,checkpointing]",
    "hooks.evaluation.max_samples=17",
    "data.batch_size=12",
]  # fmt: skip
MULTICLASS = "task: multiclass, num_classes: 19}"
MEASURED = [
    *VALIDATED,
    f"+hooks.evaluation.metrics.f1={{_target_: torchmetrics.F1Score, {MULTICLASS}",
    f"+hooks.evaluation.metrics.auc={{_target_: torchmetrics.AUROC, {MULTICLASS}",
]
WATCHED = [
    "digits", "strategy=ddp", "hooks=[checkpointing,watchdog]", "hooks.watchdog.factor=5",
    "hooks.watchdog.min_seconds=0.5",
]  # fmt: skip
SIZES = (1, 2, 6)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All of it on two ranks at once, by name."""
    folder = tmp_path_factory.mktemp("hooks")
    tasks: dict[str, Task] = {
        "steered": ("steered", {"folder": str(folder / "steered"), "overrides": STEERED}),
        "stalled": ("stalled", {"folder": str(folder / "stalled"), "overrides": WATCHED}),
    }
    for size in SIZES:
        overrides = [*VALIDATED, "strategy=ddp", f"trainer.micro_batch_size={size}"]
        tasks[f"validated {size}"] = "validated", {"overrides": overrides}
    if find_spec("torchmetrics"):
        overrides = [*MEASURED, "strategy=ddp", "trainer.micro_batch_size=3"]
        tasks["measured"] = "validated", {"overrides": overrides}
        for batches in ([2, 2], [2, 1], [1, 0]):
            tasks[f"gathered {batches}"] = (
                "gathered",
                {"overrides": [*VALIDATED, "strategy=ddp"], "batches": batches},
            )
    return dict(zip(tasks, together(2, folder, list(tasks.values())), strict=True))


def test_two_ranks_steered_by_their_own_metrics_stay_together(results):
    """Each logs another train/loss (`sync=false`); a decision of each on its own would leave one
    waiting forever."""
    first, second = results["steered"]
    assert first.pop("losses") != second.pop("losses")
    assert first == second and 1 < first["step"] < 30 and "train/loss" in first["reason"]


def test_held_out_metrics_depend_on_neither_ranks_nor_micro_batches(results):
    expected = validated([*VALIDATED, "strategy=none"])
    for size in SIZES:
        first, second = results[f"validated {size}"]
        assert first == second == pytest.approx(expected, rel=1e-6)
    smaller = validated([*VALIDATED, "strategy=none", "trainer.micro_batch_size=3"])
    assert smaller == pytest.approx(expected, rel=1e-6)
    more = validated([*VALIDATED, "strategy=none", "hooks.evaluation.max_samples=18"])
    assert more != pytest.approx(expected, rel=1e-6)
    assert expected["perplexity"] == math.exp(expected["loss"]), "of the mean over all targets"


@pytest.mark.skipif(find_spec("torchmetrics") is None, reason="needs torchmetrics")
def test_metrics_of_torchmetrics_depend_on_neither_ranks_nor_batches(results):
    expected = validated([*MEASURED, "strategy=none", "trainer.micro_batch_size=6"])
    assert 0 < expected["f1"] < 1 and 0 < expected["auc"] < 1
    first, second = results["measured"]
    assert first == second == pytest.approx(expected, rel=1e-6)


@pytest.mark.skipif(find_spec("torchmetrics") is None, reason="needs torchmetrics")
@pytest.mark.parametrize(("batches", "mean"), [([2, 2], 0.5), ([2, 1], 1 / 3), ([1, 0], 0.0)])
def test_a_metric_that_ranks_cannot_gather_is_rejected(results, batches, mean):
    """They would wait for each other without end."""
    for of_rank in results[f"gathered {batches}"]:
        assert of_rank["cat"] == pytest.approx(mean)
        if batches == [2, 2]:
            assert of_rank["None"] == pytest.approx(mean)
        else:
            assert of_rank["None"].startswith("hooks.evaluation.metrics.mean: Mean keeps a list of")


def test_watchdog_reports_a_slow_step_on_the_ranks_that_wait(results):
    for lines in results["stalled"]:
        assert any(line.startswith("Step 5 took") for line in lines)


def test_skipped_updates_end_the_command_with_the_reason(tmp_path):
    command = ["model=mlp", "data=digits", "device=cpu", "optimizer.lr=1e30", "trainer.max_steps=8"]
    command.append("hooks.checkpointing.interval=1")
    stopped = launch(tmp_path, *command, *stop_at(4), code=143)
    assert "at step 4; the same command resumes from step 1." in stopped.output
    done = launch(tmp_path, *command, code=1)
    assert "7 skipped updates in a row. This state is not saved." in done.output
    assert "Traceback" not in done.output
    saved = record(tmp_path)
    assert saved["state"] == "failed" and "skipped updates" in saved["attempts"][-1]["reason"]
    assert steps(tmp_path) == [1], "the state after the first update alone could be saved"
    assert metrics(tmp_path)[-1]["step"] == 8


def test_the_last_lines_count_the_updates_that_were_skipped(tmp_path):
    """The second batch has a sample that is not finite."""
    command = [
        *(
            "model=mlp",
            "model.num_features=64",
            "model.num_classes=10",
            "device=cpu",
            "data=custom",
        ),
        *("data.dataset._target_=support.faulty.NaNs", "data.shuffle=false", "data.batch_size=8"),
        *("hooks=[checkpointing,progress]", "hooks.checkpointing.best_metric=null"),
    ]
    for length, said in ((6, "2 updates were skipped"), (4, "1 update was skipped")):
        done = launch(tmp_path / str(length), *command, f"trainer.max_steps={length}", code=0)
        last = done.output[done.output.index("Completed at step") :]
        assert f"{said} over the whole run, for a gradient that was not finite." in last
