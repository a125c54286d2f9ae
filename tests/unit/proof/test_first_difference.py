"""The first difference between two trainings."""

import json

import pytest

from launcher.proof.code_copy import Code
from launcher.proof.first_difference import Difference, modules_renamed, renames, step_differences
from launcher.proof.side import Side
from launcher.proof.two_codes import list_changed_keys
from launcher.rundir.folder import RunFolder


def side_of(folder, **changes):
    """A training of two steps, with the changes by step and kind, as `step2_loss`."""
    folder.mkdir()
    names = changes.pop("names", ("net.0.weight", "net.2.bias"))
    weights = dict(zip(names, changes.pop("values", (1, 2)), strict=True))
    lines = [{"step": 0, "weights": weights}]
    for step in (1, 2):
        line = {"random state": {"torch": "s"}, "samples": [[1]], "loss": ["0x1p+0"]}
        line |= {"gradients": dict(weights), "weights": dict(weights)}
        for kind in list(line):
            line[kind] = changes.get(f"step{step}_{kind.replace(' ', '_')}", line[kind])
        lines.append({"step": step, **line})
    (folder / "rank-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rates.json").write_text("[[0.1]]")
    return Side(RunFolder(folder), folder, Code(folder, folder, "it"), {}, 2)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"step2_random_state": {"torch": "t"}}, "differs from step 2: random state"),
        (
            {"step1_samples": [[2]], "step1_loss": ["0x2p+0"]},
            "differs from step 1: samples",
        ),
        (
            {"step1_loss": ["0x2p+0"], "step1_gradients": {"net.0.weight": 5, "net.2.bias": 6}},
            "differs from step 1: loss; random state and samples are equal until then",
        ),
        (
            {"step2_gradients": {"net.0.weight": 1, "net.2.bias": 6}},
            "differs from step 2: gradient of net.2.bias; samples and loss are equal until then",
        ),
        (
            {"step2_weights": {"net.0.weight": 7, "net.2.bias": 2}},
            "differs from step 2: update of net.0.weight; loss and gradients are equal until then",
        ),
        ({"values": (1, 3)}, "differs before the first step: initial weights of net.2.bias"),
    ],
)
def test_the_first_difference_is_named(tmp_path, changes, text):
    old, new = side_of(tmp_path / "old"), side_of(tmp_path / "new", **changes)
    assert next(step_differences(old, new, renames(old, new))).describe() == text


def test_renamed_parameters_are_equal_if_order_and_bits_agree(tmp_path):
    old = side_of(tmp_path / "old")
    new = side_of(tmp_path / "new", names=("body.0.weight", "body.2.bias"))
    renamed = renames(old, new)
    assert not list(step_differences(old, new, renamed))
    assert modules_renamed(renamed) == ["net -> body"]
    assert old.digest() == new.digest()
    other = side_of(tmp_path / "other", names=("body.2.bias", "body.0.weight"), values=(2, 1))
    assert renames(old, other) == {}
    assert next(step_differences(old, other, {})).names == ("net.0.weight", "net.0.weight")


def test_a_difference_of_another_kind_says_what_it_is():
    assert Difference(3, "has 3 steps instead of 4").describe() == "has 3 steps instead of 4"


def test_changed_keys_are_listed_without_those_of_the_scratch_folder():
    old = {"run": {"dir": "a"}, "model": {"_target_": "x.Net", "width": 3}, "hooks": {}}
    new = {"run": {"dir": "b"}, "model": {"_target_": "y.Net", "width": 3, "deep": True}}
    (line,) = list_changed_keys(old, {**new, "hooks": {"guard_trace": {"folder": "f"}}})
    assert line == (
        "configuration: model._target_: x.Net -> y.Net, hooks: {} -> not set, model.deep: not set"
        " -> True"
    )
    assert list_changed_keys(old, old) == []
