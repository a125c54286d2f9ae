"""A trace of a window of steps."""

import gzip
import json

import pytest

from launcher import FunctionHook
from launcher.hooks.profiler import ProfilerHook
from support.toy import Toy


def test_a_window_is_traced(tmp_path, caplog):
    caplog.set_level("INFO")
    Toy([ProfilerHook(start=1, steps=2)], 5, tmp_path).train()
    (file,) = (tmp_path / "profile").iterdir()
    assert file.name == "step-00000002-rank-0.json.gz"
    names = [
        event.get("name", "")
        for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    ]
    steps = {name for name in names if name.startswith("ProfilerStep")}
    assert steps == {"ProfilerStep#1", "ProfilerStep#2"} and "aten::addmm" in names
    assert f"Profile of steps 2 to 3: {file}" in caplog.text
    assert "Self CPU time total" in caplog.text


def test_a_run_that_fails_within_the_window_leaves_its_trace(tmp_path):
    def fail(trainer: object) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        Toy(
            [ProfilerHook(start=0), FunctionHook(on_before_optimizer_step=fail)], 5, tmp_path
        ).train()
    assert (tmp_path / "profile" / "step-00000001-rank-0.json.gz").exists()


def test_other_ranks_record_nothing(tmp_path):
    Toy([ProfilerHook(start=0, ranks=[1])], 2, tmp_path).train()
    assert not (tmp_path / "profile").exists()
