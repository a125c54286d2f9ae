import pytest

from launcher.checkpoint.retention import Retention


@pytest.mark.parametrize(
    ("retention", "protected", "removed"),
    [
        (Retention(), (), [10, 20, 30, 40]),
        (Retention(keep_previous=2), (), [10, 20]),
        (Retention(keep_interval=20), (), [10, 30]),
        (Retention(keep_steps=(10,)), (), [20, 30, 40]),
        (Retention(keep_previous=1), (20,), [10, 30]),
        (Retention(keep_previous=9), (), []),
    ],
)
def test_what_goes(retention: Retention, protected: tuple[int, ...], removed: list[int]) -> None:
    assert retention.to_remove([10, 20, 30, 40, 50, 60], newest=50, protected=protected) == removed
