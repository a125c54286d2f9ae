"""`run.json` follows training, and differences since the checkpoint are reported."""

import logging
from typing import Any

from launcher import CheckpointingHook, LoggingHook
from launcher.hooks.base import RunContext
from launcher.hooks.run_record import RecordHook
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from support.toy import Toy, Values


def train(folder: RunFolder, max_steps: int, config: dict[str, Any]) -> RunRecord:
    record = RunRecord(folder)

    def begin() -> None:
        record.begin_attempt(
            start_step=trainer.step, max_steps=max_steps, world_size=1, strategy="none"
        )

    recorder = RecordHook(config, {"git": "1"}, begin)
    recorder.record = record
    hooks = [
        recorder,
        Values({2: {"loss": 0.25}}),
        LoggingHook(interval=1),
        CheckpointingHook(interval=1, best_metric="val/loss"),
    ]
    trainer = Toy(hooks, max_steps, folder.path)
    trainer.context = RunContext(texts={"config.yaml": "seed: 1\n", "code.yaml": "git: '1'\n"})
    trainer.train()
    return record


def test_the_record_follows_training(tmp_path, caplog):
    folder = RunFolder(tmp_path)
    folder.create()
    train(folder, 2, {"seed": 1})
    caplog.set_level(logging.WARNING)
    record = train(folder, 3, {"seed": 2})
    assert record.step == 3
    assert [attempt["start_step"] for attempt in record.attempts] == [0, 2]
    (line,) = [r.getMessage() for r in caplog.records if "seed" in r.getMessage()]
    assert "1" in line and "2" in line
    assert record.data["best"] == {
        "metric": "val/loss",
        "value": 0.25,
        "step": 2,
        "mode": "min",
    }
