"""Scratch runs: where they write, how they fail, and what a replay says of another machine;
tests/end_to_end/test_replay.py trains."""

import pytest
import yaml

from launcher.errors import ConfigError
from launcher.process.device import cpu_kernels
from launcher.proof.scratch_run import check_ended, is_outside, starts_of
from launcher.proof.segment import circumstances
from launcher.rundir.provenance import MACHINE, describe_machine, machine_state


def test_places_outside_the_run_are_not_written(tmp_path):
    for path in ("s3://bucket/x", "/abs", "../x", "~/x"):
        assert is_outside(tmp_path / "run", path), path
    assert not any(is_outside(tmp_path / "run", path) for path in ("checkpoints", "a/../b"))


def test_a_copy_starts_from_the_same_run(tmp_path):
    (saved := tmp_path / "mlp/aa/checkpoints/step-00000003").mkdir(parents=True)
    config = {"paths": {"outputs": str(tmp_path)}, "run": {"fork_from": "aa/3", "init_from": "aa"}}
    whole = {"run.fork_from": str(saved), "run.init_from": str(tmp_path / "mlp/aa")}
    assert starts_of(config) == whole
    assert starts_of(config | {"run": {"init_from": str(tmp_path)}}) == {}


@pytest.mark.parametrize(
    ("code", "log", "expected"),
    [
        (1, "ERROR a\nOSError: [Errno 28] No space left on device\nmore\n",
         "mlp/1: No space left on device; train in another folder (--scratch, job.scratch)."),
        (2, "10:00:00 INFO    a\ndevice=cuda: not available.\n",
         "mlp/1: cannot be trained here: device=cuda: not available."),
        (3, "a\n", "mlp/1: the training ended with exit code 3:\na"),
    ],
)  # fmt: skip
def test_a_training_that_fails_is_one_message(tmp_path, code, log, expected):
    (tmp_path / "log").write_text(log)
    with pytest.raises(ConfigError) as caught:
        check_ended(code, tmp_path / "log", "mlp/1")
    assert "\n".join(caught.value.messages) == expected
    check_ended(0, tmp_path / "log", "mlp/1")


def test_another_machine_is_named_by_what_differs(tmp_path):
    here = machine_state("cpu", 1, cpu_kernels(), data="a")
    there = here | {"processor": "Z80", "blas": "none", "threads": 2}
    for name, machine in (("before", there), ("after", here)):
        (tmp_path / name).mkdir()
        (tmp_path / name / MACHINE).write_text(yaml.safe_dump(machine, sort_keys=False))
    assert circumstances(tmp_path / "before", tmp_path / "after") == [
        "blas: none -> " + here["blas"],
        f"processor: Z80 -> {here['processor']!r}",
        "threads: 2 -> 1",
    ]
    assert describe_machine(there) == f"Z80, {here['instructions']}, none, 2 threads, cpu"
    assert (
        describe_machine(here) == describe_machine(here | {"data": "b"}) != describe_machine(there)
    )
