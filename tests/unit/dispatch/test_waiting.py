import pytest

from launcher.dispatch.waiting import RETRY_LOOKS, Room, is_open
from launcher.runs.stored_run import StoredRun
from support.tracked import WrittenRun


def test_a_completed_run_is_waited_for_until_its_process_has_left_it(tmp_path):
    """Until then, the next command would be rejected."""
    run = WrittenRun(tmp_path / "name" / "abcd1234")
    run.record.end_attempt("completed", end_step=100)
    assert is_open("name/abcd1234", StoredRun.read(run.folder.path), {}, {})
    run.lock.release()
    assert not is_open("name/abcd1234", StoredRun.read(run.folder.path), {}, {})


@pytest.mark.parametrize(
    ("looks", "expected"),
    {
        "the first look": ([("1 2", False)], [0]),
        "the same queue": ([("1 2", False)] * 4, [0]),
        "a job has ended": ([("1 2", False), ("2", False), ("2", False)], [0, 1]),
        "another has taken its place": ([("1 2", False), ("2 3", False)], [0, 1]),
        "it has ended before it was seen": (
            [("", True), ("", True), ("", False), ("", False)],
            [0, 1, 2],
        ),
        "others had the room": (
            [("1", False)] * (2 * RETRY_LOOKS + 1),
            [0, RETRY_LOOKS, 2 * RETRY_LOOKS],
        ),
    }.values(),
)
def test_slurm_is_asked_for_room_when_there_may_be_some(looks, expected):
    """At each look: the jobs in the queue, and whether a try submits something."""
    room, tries = Room(), []
    for number, (names, has_submitted) in enumerate(looks):
        jobs = set(names.split())
        if room.may_be_there(jobs):
            tries.append(number)
            room.has_tried(jobs, has_submitted)
    assert tries == expected
