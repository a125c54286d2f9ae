from pathlib import Path

import pytest

from launcher import LoggingHook
from support.toy import Recorder, Toy


def test_logging_has_means_and_the_rate_before_the_step(tmp_path: Path) -> None:
    logged = Recorder()
    trainer = Toy([LoggingHook(interval=2), logged], 5, tmp_path, gradient_accumulation_steps=3)
    trainer.train()
    assert [step for step, _ in logged.records] == [2, 4, 5], "the last step is logged in any case"
    train = logged.records[0][1]["train"]
    assert set(train) == {
        "size", "aux", "loss", "grad_norm", "lr", "step_time", "data_time", "non_finite_grad_retry_count"
    }  # fmt: skip
    assert train["size"] == 4.0
    assert train["lr"] == dict.fromkeys(["0.weight", "0.bias", "2.weight", "2.bias"], 0.05), "step 2 ran at 0.1 * 0.5"
    assert train["aux"]["l"] == pytest.approx(train["loss"])
