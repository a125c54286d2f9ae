import logging
from pathlib import Path

import pytest

from launcher import ProgressHook
from support.toy import Toy


def test_progress_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticks = iter(range(1000))
    hook = ProgressHook(interval=2, with_records=True, eta_warmup=1, live=False, clock=lambda: float(next(ticks)))
    Toy([hook], 5, tmp_path).train()
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Step")]
    assert [line.split(":")[0] for line in lines] == ["Step 2/5", "Step 4/5", "Step 5/5"]
    assert "eta 0:00:03" in lines[0], "one tick a step"
    for word in ("step 0.", "data 0.", "loss ", "grad_norm ", "lr_0 5.00e-02", "| size 4.000 aux/l "):
        assert word in lines[0]
