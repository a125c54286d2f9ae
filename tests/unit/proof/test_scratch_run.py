"""Scratch runs: where they write, and how they fail; tests/end_to_end/test_replay.py trains."""

import pytest

from launcher.errors import ConfigError
from launcher.proof.scratch_run import check_ended, is_outside


def test_places_outside_the_run_are_not_written(tmp_path):
    outside = {
        "s3://bucket/x": True,
        "/abs": True,
        "../x": True,
        "~/x": True,
        "checkpoints": False,
        "a/../b": False,
    }
    assert {path: is_outside(tmp_path / "run", path) for path in outside} == outside


def test_a_full_scratch_disk_is_one_sentence(tmp_path):
    log = tmp_path / "log"
    log.write_text("ERROR a\nOSError: [Errno 28] No space left on device\nmore\n")
    with pytest.raises(ConfigError) as caught:
        check_ended(1, log, "mlp/1, steps 0 to 10")
    assert caught.value.messages == [
        "mlp/1, steps 0 to 10: No space left on device; train in another folder (--scratch,"
        " job.scratch)."
    ]


def test_a_configuration_that_is_rejected_here_is_one_sentence(tmp_path):
    log = tmp_path / "log"
    log.write_text("10:00:00 INFO    a\ndevice=cuda: not available on this machine.\n")
    with pytest.raises(ConfigError) as caught:
        check_ended(2, log, "mlp/1, steps 0 to 10", " (the run was on NVIDIA H100, 8 ranks)")
    assert caught.value.messages == [
        "mlp/1, steps 0 to 10: cannot be trained here (the run was on NVIDIA H100, 8 ranks):"
        " device=cuda: not available on this machine."
    ]
    check_ended(0, log, "mlp/1")
