"""Lines of metrics, compared step by step."""

from launcher.proof.lines import line_differences, lines_of
from launcher.rundir.folder import RunFolder

NAMES = "the run", "the replay"
NAN = float("nan")


def texts(before, after):
    return list(map(str, line_differences(before, after, NAMES)))


def test_a_difference_names_step_key_and_values():
    assert texts({3: {"a": 1, "b": 2}}, {3: {"a": 1, "b": 3, "c": 4}}) == [
        "step 3: b 3 instead of 2",
        "step 3: c 4 instead of None",
    ]
    assert texts({3: {"a": 1}}, {}) == ["step 3: only the run has a line of metrics.jsonl"]
    assert texts({}, {3: {"a": 1}}) == ["step 3: only the replay has a line of metrics.jsonl"]


def test_numbers_are_equal_if_their_bits_are():
    assert texts({3: {"a": NAN, "b": 0.1}}, {3: {"a": NAN, "b": 0.1}}) == []
    assert texts({3: {"a": 0.0}}, {3: {"a": -0.0}}) == ["step 3: a -0.0 instead of 0.0"]


def test_the_newest_line_of_a_step_counts_without_times(tmp_path):
    (folder := RunFolder(tmp_path)).metrics_path.write_text(
        '{"step":2,"train/loss":3.0,"attempt":1}\n{"step":4,"train/loss":2.0,"attempt":1}\n'
        '{"step":4,"train/loss":1.0,"time":9.0,"attempt":2}\n{"step":6,"train/loss":0.5}\n'
    )
    assert lines_of(folder, 2, 4) == {4: {"step": 4, "train/loss": 1.0}}
