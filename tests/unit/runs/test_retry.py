"""`runs retry`, as far as it needs no cluster."""

import pytest

from support.submitted import note_job


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_run_of_another_kind_is_not_submitted(make_run, runs, by_hand):
    """One that `sbatch slurm/train.sbatch` started has a frozen configuration too, but not that of a submission."""
    folder = make_run("gpt", "1a2b0000", state="failed")
    if by_hand:
        note_job(folder, "", job_id="7")
    code, output, error = runs("retry", "--all")
    assert (code, output) == (1, "")
    assert error == (
        "gpt/1a2b0000: was not submitted with dispatch=slurm; resume it with: python -m launcher.runs resume 1a2b0000\n"
    )
