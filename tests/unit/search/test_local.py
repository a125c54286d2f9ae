"""The GPUs of each of several trials at a time."""

import pytest

from launcher.search.local import devices, gpu_share


@pytest.mark.parametrize(
    ("gpus", "slots", "shares"),
    [
        ([], 2, [[], []]),
        (["0", "1", "2", "3"], 2, [["0", "1"], ["2", "3"]]),
        (["0", "1", "2"], 2, [["0"], ["1"]]),
        (["4"], 3, [["4"], ["4"], ["4"]]),
        (["0", "1"], 3, [["0"], ["1"], ["0"]]),
    ],
)
def test_each_slot_has_its_share(gpus: list[str], slots: int, shares: list[list[str]]) -> None:
    assert [gpu_share(gpus, slot, slots) for slot in range(slots)] == shares


def test_only_visible_devices_are_divided() -> None:
    assert devices({"CUDA_VISIBLE_DEVICES": "3, GPU-1"}, 2) == ["3", "GPU-1"]
    assert devices({}, 2) == ["0", "1"]
