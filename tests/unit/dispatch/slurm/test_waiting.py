from launcher.dispatch.slurm.waiting import is_open
from launcher.runs.stored_run import StoredRun
from support.tracked import WrittenRun


def test_a_completed_run_is_waited_for_until_its_process_has_left_it(tmp_path):
    """Until then, the next command would be rejected."""
    run = WrittenRun(tmp_path / "name" / "abcd1234")
    run.record.end_attempt("completed", end_step=100)
    assert is_open("name/abcd1234", StoredRun.read(run.folder.path), {}, {})
    run.lock.release()
    assert not is_open("name/abcd1234", StoredRun.read(run.folder.path), {}, {})
