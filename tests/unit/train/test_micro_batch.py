"""The sizes that `trainer.micro_batch_size=auto` tries."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir.folder import RunFolder
from launcher.train.micro_batch import earlier_size, halve, with_micro_batch_size
from support.composition import composed, run_of

SMALL = [
    "model=gpt", "model.dim=16", "model.num_layers=1", "model.num_heads=2", "data=synthetic",
    "data.seq_len=64", "data.vocab_size=16", "data.batch_size=60", "strategy=ddp", "device=cpu",
]  # fmt: skip
AUTO = [*SMALL, "trainer.micro_batch_size=auto"]
OOM = "OutOfMemoryError: CUDA out of memory."


@given(st.integers(1, 400))
def test_each_size_divides_the_share_and_is_at_most_half_of_the_last(share):
    sizes = [share]
    while sizes[-1] > 1:
        sizes.append(halve(sizes[-1], share))
        assert share % sizes[-1] == 0
        between = range(sizes[-1] + 1, sizes[-2] // 2 + 1)
        assert sizes[-1] <= max(1, sizes[-2] // 2) and all(share % one for one in between)


def test_the_size_is_not_part_of_the_id():
    def of(value: str) -> str:
        words = ["run.name=a", *SMALL, f"trainer.micro_batch_size={value}"]
        return str(composed(words).run.id)

    assert of("auto") == of("null") != of("5")


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([], (60, False)),
        ([(1, 10, None), (2, 15, None), (1, 20, None), (1, None, None), (2, 6, None)], (20, True)),
        ([(2, 10, None)], (60, False)),
        ([(1, 7, None)], (60, False)),
        ([(1, 15, None), (1, 60, OOM)], (30, False)),
        ([(1, 60, OOM), (1, 30, None)], (30, True)),
        ([(1, 60, OOM), (1, None, OOM)], (30, False)),
        ([(1, 1, OOM)], (1, False)),
    ],
)
def test_the_newest_attempt_with_as_many_ranks_is_followed(tmp_path, attempts, expected):
    folder = RunFolder(tmp_path / "gpt-synthetic" / "0123456789ab")
    assert earlier_size(folder, 60, 1) == (60, False)
    one = {"number": 1, "started": "2026-01-01T00:00:00+00:00", "host": "a", "pid": 1}
    found = [
        {**one, "start_step": 0, "world_size": ranks, "micro_batch_size": size, "reason": reason}
        for ranks, size, reason in attempts
    ]
    folder.path.mkdir(parents=True)
    folder.record_path.write_text(json.dumps({"attempts": found}))
    assert earlier_size(folder, 60, 1) == expected
    if expected[1]:
        config = with_micro_batch_size(run_of(AUTO), folder)
        assert config.trainer.micro_batch_size == expected[0]
    assert with_micro_batch_size(run_of(SMALL), folder).trainer.micro_batch_size is None
