"""The first difference between two trainings."""

import pytest

from launcher.proof.code_copy import Code
from launcher.proof.first_difference import first_difference, modules_renamed, renames
from launcher.proof.side import Place, Side
from launcher.proof.two_codes import _changed_keys

NAMES = ("net.0.weight", "net.2.bias")


def side_of(folder, changes=(), names=NAMES, initial=(1, 2)):
    """A training of two steps, where changes have other values."""
    weights = zip(names, initial, strict=True)
    values = {Place(0, "weights", 0, name): value for name, value in weights}
    for step in (1, 2):
        values |= {Place(step, kind): kind for kind in ("random state", "samples", "loss")}
        for kind in ("gradients", "weights"):
            values |= {Place(step, kind, 0, name): number for number, name in enumerate(names)}
    values |= {Place(2, "end"): 2, Place(3, "learning rate"): "0.1"}
    values |= {Place(2, "metrics", 0, "val/loss"): "0.5"}
    values |= {Place(2, "tensor", 0, f"optimizer/{name}/exp_avg"): "a" for name in names}
    values |= {Place(2, "state", 0, "state/names/0"): repr(names[0])}
    return Side(Code(folder, folder, "it"), folder, values | dict(changes), 2, {}, {}, "")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({Place(2, "random state"): 0}, "differs from step 2: random state"),
        ({Place(1, "samples"): 0, Place(1, "loss"): 0}, "differs from step 1: samples"),
        (
            {Place(1, "loss"): 0, Place(1, "gradients", 0, NAMES[0]): 5, Place(3, "end"): 3},
            "differs from step 1: loss; random state and samples are equal until then",
        ),
        (
            {Place(2, "gradients", 0, NAMES[1]): 6},
            "differs from step 2: gradient of net.2.bias; samples and loss are equal until then",
        ),
        (
            {Place(2, "weights", 0, NAMES[0]): 7, Place(2, "samples", 1): 1},
            "differs from step 2: samples on rank 1",
        ),
        (
            {Place(2, "weights", 0, NAMES[0]): 7, Place(3, "learning rate"): "0.2"},
            "differs from step 2: update of net.0.weight; loss and gradients are equal until then",
        ),
        (
            {Place(0, "weights", 0, NAMES[1]): 3, Place(1, "loss"): 0},
            "differs before the first step: initial weights of net.2.bias",
        ),
        (
            {Place(0, "weights", 0, "net.3.bias"): 3},
            "differs before the first step: initial weights of net.3.bias",
        ),
        ({Place(0, "data"): "new"}, "trains on other data: new instead of None"),
        ({Place(2, "end"): 3, Place(3, "learning rate"): "0.2"}, "ends at step 3 instead of 2"),
        (
            {Place(3, "learning rate"): "0.2", Place(2, "metrics", 0, "val/loss"): "0"},
            "differs from step 3: learning rate (0.2 instead of 0.1); the steps before are equal",
        ),
        (
            {Place(2, "metrics", 0, "val/loss"): "0", Place(2, "state", 0, "state/names/0"): ""},
            "differs in metrics.jsonl, step 2: val/loss 0 instead of 0.5; the steps are equal",
        ),
        (
            {Place(2, "state", 0, "state/count"): "2"},
            "differs in the state after step 2: state/count (2 instead of None)",
        ),
    ],
)
def test_the_first_difference_is_named(tmp_path, changes, text):
    difference = first_difference(side_of(tmp_path), side_of(tmp_path, changes))
    assert difference is not None and difference.describe() == text


def test_a_shorter_training_is_compared_up_to_its_end(tmp_path):
    whole = side_of(tmp_path, {Place(2, "loss"): 0})
    short = {place: value for place, value in whole.values.items() if place.step < 2}
    shorter = Side(whole.code, tmp_path, short | {Place(1, "end"): 1}, 1, {}, {}, "")
    difference = first_difference(whole, shorter)
    assert difference is not None and difference.place.kind == "end"


def test_renamed_parameters_are_equal_if_order_and_bits_agree(tmp_path):
    old = side_of(tmp_path)
    new = side_of(tmp_path, names=("body.0.weight", "body.2.bias"))
    assert modules_renamed(renames(old, new)) == ["net -> body"]
    assert first_difference(old, new) is None and old.digest() == new.digest()
    place = Place(2, "gradients", 0, "body.2.bias")
    difference = first_difference(
        old, side_of(tmp_path, {place: 7}, ("body.0.weight", "body.2.bias"))
    )
    assert difference is not None
    assert (difference.place, difference.old_name) == (place, "net.2.bias")
    other = side_of(tmp_path, names=("body.2.bias", "body.0.weight"), initial=(2, 1))
    assert renames(old, other) == {} and first_difference(old, other) is not None


def test_changed_keys_are_listed_without_those_of_the_scratch_folder():
    old = {"run": {"dir": "a"}, "model": {"_target_": "x.Net", "width": 3}, "hooks": {}}
    new = {"run": {"dir": "b"}, "model": {"_target_": "y.Net", "width": 3, "deep": True}}
    (line,) = _changed_keys(old, {**new, "hooks": {"guard_trace": {"folder": "f"}}})
    assert line == (
        "configuration: model._target_: x.Net -> y.Net, hooks: {} -> not set, model.deep: not set"
        " -> True"
    )
    assert _changed_keys(old, old) == []
