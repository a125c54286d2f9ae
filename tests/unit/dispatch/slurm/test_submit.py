from pathlib import Path

import pytest

from launcher.dispatch.jobs import Job
from launcher.dispatch.slurm import SlurmDispatch
from support.job_scripts import run_of
from support.scripted_slurm import ScriptedQueue


@pytest.mark.parametrize("parallelism", [None, 1])
@pytest.mark.parametrize("asked", ["all again", "the rest", "a cancelled one", "another"])
def test_a_sweep_of_several_submissions_keeps_its_limit(tmp_path, monkeypatch, asked, parallelism):
    """The command is repeated with more runs, has room for the rest, or submits a run again."""
    slurm = ScriptedQueue(work=lambda folder, start: True).install(monkeypatch, tmp_path)
    monkeypatch.setattr(Job, "outputs", tmp_path)
    dispatch = SlurmDispatch(array_parallelism=parallelism)
    first = [run_of(tmp_path / str(number), None) for number in range(2)]
    third = run_of(tmp_path / "2", None)
    assert dispatch.submit(first) is None
    slurm.cancel("1_1")
    again = {
        "all again": [run_of(tmp_path / "0", None), third],
        "the rest": [*first, third],
        "a cancelled one": [run_of(tmp_path / "1", None)],
        "another": [third],
    }
    assert dispatch.submit(again[asked]) is None
    flag = "#SBATCH --dependency=afterany:1\n"
    is_expected = parallelism is not None and asked != "another"
    assert (flag in Path(slurm.jobs["3"].script).read_text()) == is_expected
    assert list(slurm.jobs) == ["1_0", "3"]


def test_a_dry_run_needs_no_controller(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    runs = [run_of(tmp_path / "outputs", None)]
    SlurmDispatch(dry_run=True)._submit(runs)
    printed = capsys.readouterr().out
    assert printed.startswith("# SLURM does not answer here") and "#SBATCH" in printed
    assert not (tmp_path / "outputs").exists()
