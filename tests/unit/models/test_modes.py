"""The mode of each module."""

import pytest
from torch import nn

from launcher.models.modes import modes_of, own_modes, restore_modes, set_modes, start_training


class Keeping(nn.BatchNorm1d):
    """Stays in evaluation mode, by a method of its own."""

    def train(self, mode: bool = True):
        return super().train(False)


class Merging(nn.Linear):
    """Merges weights for evaluation, as layers of adapters do."""

    is_merged = False

    def train(self, mode: bool = True):
        self.is_merged = not mode
        return super().train(mode)


def network() -> nn.Module:
    shared = nn.Dropout()
    return nn.ModuleDict(
        {
            "encoder": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), shared),
            "kept": Keeping(2),
            "merging": Merging(2, 2),
            "head": nn.Sequential(nn.Linear(2, 2), shared),
        }
    )


CASES = {
    "all train": [],
    "the model": [""],
    "a part": ["encoder"],
    "a part of a part": ["encoder.1"],
    "a shared part": ["encoder.2"],
    "around a part that trains": ["encoder", "head"],
}


def in_modes(case: str) -> nn.Module:
    model = network()
    model.train()
    for name in CASES[case]:
        model.get_submodule(name).eval()
    if case == "around a part that trains":
        model.get_submodule("encoder.1").train()
    return model


@pytest.mark.parametrize("case", CASES)
def test_modes_are_restored_one_by_one(case):
    model = in_modes(case)
    before, modes = modes_of(model), dict(own_modes(model))
    model.eval()
    assert model["merging"].is_merged
    set_modes(before)
    assert modes_of(model) == before
    assert model["merging"].is_merged is (not model["merging"].training)
    other = network()
    assert restore_modes(other, modes) == []
    assert [mode for _, mode in modes_of(other)] == [mode for _, mode in before]
    assert own_modes(other) == modes


def test_only_differences_are_stored():
    assert own_modes(nn.Sequential(nn.Linear(2, 2), nn.Dropout())) == {}
    assert own_modes(in_modes("a part of a part")) == {"encoder.1": False, "kept": False}
    around = own_modes(in_modes("around a part that trains"))
    assert around == {"encoder": False, "encoder.1": True, "head": False, "kept": False}
    assert restore_modes(network(), {"gone": False}) == ["gone"]


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("all train", []),
        ("the model", [""]),
        ("a part", ["encoder"]),
        ("a part of a part", ["encoder.1"]),
        ("around a part that trains", ["encoder", "head"]),
    ],
)
def test_a_start_names_what_it_takes_out_of_evaluation(case, names):
    model = in_modes(case)
    assert start_training(model) == names
    assert own_modes(model) == {"kept": False}, "by its own train()"
