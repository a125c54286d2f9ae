from pathlib import Path

import pytest

from launcher import CheckpointingHook, EarlyStoppingHook, LoggingHook
from support.toy import Recorder, Toy, Values


@pytest.mark.parametrize("pauses", [[], [1], [3], [1, 2, 4]])
def test_it_stops_at_the_same_step_however_often_it_is_resumed(tmp_path: Path, pauses: list[int]) -> None:
    """The best at step 2, then three without a gain; the counts and the best survive a resume."""
    values = {step: {"loss": loss} for step, loss in enumerate([1.0, 0.5, 0.7, 0.6, 0.55, 0.5, 0.4], 1)}
    for max_steps in [*pauses, 7]:
        trainer = Toy(
            [Values(values), EarlyStoppingHook(patience=3), CheckpointingHook(interval=1)], max_steps, tmp_path
        )
        trainer.train()
    assert trainer.step == 5
    assert "0.5 (step 2)" in str(trainer.state.stop_reason)


def test_its_last_steps_and_its_reason_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    recorder, values = Recorder(), Values({step: {"loss": 1.0} for step in (3, 5)})
    Toy([LoggingHook(4), recorder, values, EarlyStoppingHook(patience=1)], 50, tmp_path).train()
    assert [step for step, records in recorder.records if "train" in records] == [4, 5], "the part of an interval too"
    assert "Step 5: training stops early: val/loss has not improved on 1 (step 3) in 1 evaluations." in caplog.text
