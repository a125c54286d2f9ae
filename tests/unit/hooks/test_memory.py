"""The peak of memory in what is logged and shown."""

import pytest

from launcher import LoggingHook
from launcher.hooks.memory import MemoryHook
from support.toy import Recorder, Toy


@pytest.mark.parametrize("comes_first", [True, False])
def test_the_peak_is_logged_whatever_the_order(tmp_path, comes_first):
    logged, hook, logging = Recorder(), MemoryHook(interval=2), LoggingHook(3)
    Toy([*([hook, logging] if comes_first else [logging, hook]), logged], 3, tmp_path).train()
    ((_, train),), memory = logged.of("train"), dict(logged.of("memory"))
    assert 0.01 < train["max_memory"] < 100
    assert list(memory) == [2, 3] and memory[3] == {"rank_0": train["max_memory"]}
