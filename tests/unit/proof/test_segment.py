"""Messages of a replay about another machine, and about a folder that cannot be copied."""

import errno
import os
import shutil

import yaml

from launcher.process.device import cpu_kernels
from launcher.proof.segment import circumstances, reason_of
from launcher.rundir.provenance import MACHINE, described, machine_state


def test_the_reason_of_a_folder_that_cannot_be_copied_is_short():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "shard")
    for failed, reason in (
        (shutil.Error([("a", "b", str(full)), ("c", "d", str(full))]), "No space left on device"),
        (shutil.Error([("a", "b", "[Errno 5] I/O error")]), "[Errno 5] I/O error"),
        (full, "No space left on device"),
    ):
        assert reason_of(failed) == reason


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
    assert described(there) == f"Z80, {here['instructions']}, none, 2 threads, cpu"
    assert described(here) == described(here | {"data": "b"}) != described(there)
