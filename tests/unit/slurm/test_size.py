"""Numbers of nodes and tasks of a job."""

from dataclasses import replace

import pytest

from launcher.dispatch.slurm import SlurmDispatch
from launcher.errors import ConfigError
from launcher.slurm.size import Size


@pytest.mark.parametrize(
    ("settings", "expected", "command"),
    [
        (
            (2, 4),
            {"nodes": "2", "ntasks-per-node": 4, "cpus-per-task": 3},
            "guarded srun",
        ),
        (
            ("1-4", 4),
            {"nodes": "1-4", "mincpus": 12},
            "on_nodes 4 0",
        ),
        (
            ("1-4", 2, 8),
            {"nodes": "1-4", "mincpus": 6},
            "on_nodes 2 8",
        ),
    ],
)
def test_flags_of_sbatch_and_srun(settings, expected, command):
    *settings, lanes = settings if len(settings) == 3 else (*settings, None)
    size = replace(Size.of(*settings), lanes=lanes)
    assert (size.flags(3), size.command()) == (expected, command)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"nodes": "4-1"},
            r"dispatch\.nodes='4-1': should be a number of nodes, or the fewest and the most",
        ),
        (
            {"nodes": "many"},
            r"dispatch\.nodes='many': should be a number of nodes, or the fewest and the most",
        ),
        (
            {"runs_per_job": 2, "nodes": 2},
            r"dispatch\.runs_per_job=2: several runs of a job share one node; leave .*nodes=2 out",
        ),
        (
            {"runs_per_job": 4, "array_parallelism": 3},
            r"dispatch\.runs_per_job=4: is more than the runs at once, .*=3; use a smaller one",
        ),
    ],
)
def test_inconsistent_job_size_is_rejected(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        SlurmDispatch(**settings)
