"""Kills at random moments of whatever starts several runs."""

import random
import signal

import pytest

from support import python
from support.kill_matrix import Case, alone, check

pytestmark = pytest.mark.skipif(
    not python.CAN_FORK, reason="children of a killed command end by a call of Linux"
)
SECONDS = 6.0
"""Kills come within these seconds, in which the runs start, train and save."""


@pytest.mark.parametrize(
    "case",
    [
        Case("sweep", "parent", signal.SIGKILL, 2),
        Case("sweep", "group", signal.SIGINT, 1, ranks=2),
        Case("search", "child", signal.SIGKILL, 2),
        Case("shared", "parent", signal.SIGTERM, 4),
    ],
    ids=str,
)
def test_killed_runs_are_completed_as_if_each_had_been_trained_alone(tmp_path, case):
    expected = alone(case, tmp_path / "alone")
    check(case, tmp_path / "killed", expected, SECONDS, random.Random(str(case)))
