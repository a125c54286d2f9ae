"""Hooks that steer a run: on two ranks, and as a command."""

import json
from pathlib import Path

from support.ranks import together
from support.runner import launch, record, run_folder, steps


def test_two_ranks_steered_by_their_own_metrics_stay_together(tmp_path: Path) -> None:
    """Each logs another train/loss (`sync=false`); a decision of each on its own would leave one waiting forever."""
    overrides = [
        "digits", "strategy=ddp", "strategy.timeout=60", "trainer.max_steps=30", "optimizer.lr=0.3",
        "hooks=[logging,checkpointing,early_stopping]", "hooks.logging.interval=1", "hooks.logging.sync=false",
        "hooks.early_stopping.metric=train/loss", "hooks.early_stopping.patience=1",
        "hooks.checkpointing.best_metric=train/accuracy",
    ]  # fmt: skip
    ((first, second),) = together(2, tmp_path, [("steered", {"folder": str(tmp_path), "overrides": overrides})])
    assert first["losses"] != second["losses"]
    del first["losses"], second["losses"]
    assert first == second and 1 < first["step"] < 30 and "train/loss" in first["reason"]


def test_skipped_updates_end_the_command_with_the_reason(tmp_path: Path) -> None:
    command = ["model=mlp", "data=digits", "device=cpu", "optimizer.lr=1e30", "trainer.max_steps=8"]
    for attempt in (1, 2):
        done = launch(tmp_path, *command, "hooks.checkpointing.interval=1")
        assert done.returncode == 1, done.output
        assert "7 skipped updates in a row. This state is not saved." in done.output
        assert "Traceback" not in done.output
        saved = record(tmp_path)
        assert saved["state"] == "failed" and "skipped updates" in saved["attempts"][-1]["reason"]
        assert len(saved["attempts"]) == attempt
    assert steps(tmp_path) == [1], "the state after the first update alone could be saved"
    lines = [json.loads(line) for line in (run_folder(tmp_path) / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 8
