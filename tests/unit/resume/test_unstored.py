"""Each part of the corpus is restored bitwise, or told by its path, and nothing else is told."""

import random
from argparse import Namespace
from collections import ChainMap, UserDict, UserList
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from launcher.process.object_marks import MAX_OBJECTS, Looks, Restored
from launcher.process.object_walk import parts_of, reach
from launcher.resume.unstored import MAX_PATHS, message
from support.stateful import CASES, STOPS, Case
from support.stateful.product import train

pytestmark = pytest.mark.slow

RESTORED = {"collate_with_a_generator", "collate_function_with_an_attribute"}
"""Parts that a plain loop loses, and Launcher restores."""


def told(texts: list[str]) -> list[str]:
    return [text for text in texts if text.startswith("After a resume these would start over")]


def is_restored(case: Case) -> bool:
    return case.lost is None or case.make.__name__ in RESTORED


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_part_is_restored_or_told_by_its_path(case, tmp_path):
    whole, texts = train(case, tmp_path / "whole")
    if not is_restored(case):
        assert any(f"{case.lost}" in text for text in told(texts)), texts
        return
    assert texts == []
    stop = STOPS[0]
    first, _ = train(case, tmp_path / "parts", stop)
    second, texts = train(case, tmp_path / "parts")
    assert first + second == whole
    assert texts == []


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


class Trap:
    """Raises when any code of it is called."""

    count = 0

    def __init__(self) -> None:
        self.__dict__["count"] = 3

    @property
    def size(self) -> int:
        raise AssertionError("a property was called")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"__getattr__({name}) was called")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("__eq__ was called")

    def __hash__(self) -> int:
        raise AssertionError("__hash__ was called")

    def __repr__(self) -> str:
        raise AssertionError("__repr__ was called")


def test_no_code_of_an_object_is_called():
    parts = SimpleNamespace(trap=Trap(), many={"a": Trap(), 1: [Trap()]}, few={Trap}, own=(Trap(),))
    holder = Holder(None)
    holder.__dict__.update(vars(parts))
    looks = Looks()
    looks.look({"part": holder}, Restored())
    parts.trap.__dict__["count"] = 4
    changes = looks.look({"part": holder}, Restored())
    assert list(changes.values()) == ["part.trap.count (3 -> 4)"]


@pytest.mark.parametrize(
    ("bag", "path"),
    [
        (SimpleNamespace(rng=None), "part.rng"),
        (Namespace(rng=None), "part.rng"),
        (UserDict({"rng": None}), "part.data.rng"),
        (UserList([None]), "part.data"),
        (ChainMap({"rng": None}), "part.maps.0.rng"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_in_a_class_of_the_standard_library_that_a_user_fills(bag, path):
    rng = random.Random(0)
    if isinstance(bag, UserList | UserDict | ChainMap):
        bag[0 if isinstance(bag, UserList) else "rng"] = rng
    else:
        bag.rng = rng
    looks = Looks()
    looks.look({"part": bag}, Restored())
    rng.random()
    (told,) = looks.look({"part": bag}, Restored())
    assert told.startswith(path)


def test_nothing_of_an_object_changes():
    case = next(case for case in CASES if case.make.__name__ == "deque_of_samples")
    parts = case.make()
    before, generator = dict(vars(parts.dataset)), torch.get_rng_state()
    Looks().look({"part": parts.dataset}, Restored())
    assert vars(parts.dataset).keys() == before.keys()
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_walk_is_bounded_and_says_so():
    many, now = Holder(None), [0.0]
    many.__dict__.update({f"value{number}": number for number in range(MAX_OBJECTS)})

    def clock() -> float:
        now[0] += 0.01
        return now[0]

    for looks in (Looks(lambda: 0.0), Looks(clock)):
        looks.look({"part": many}, Restored())
        assert looks.is_cut
        looks.look({"part": Holder(None), "other": 3}, Restored())
        # The other part may have been there before.
        assert not looks.changed
    looks = Looks(lambda: 0.0)
    looks.look({"part": Holder(many.__dict__["value3"])}, Restored())
    assert not looks.is_cut


def test_data_are_not_copied():
    rows = np.zeros((10_000, 100))
    values = {place.path: place.value for place in reach({"part": Holder(rows)}, parts_of)}
    assert values["part.value"] is rows


def changes_of(*values: Any) -> list[list[str]]:
    """Return the changes that each look finds at an attribute with these values."""
    looks, holder = Looks(), Holder(None)
    found = []
    for value in values:
        holder.value = value
        found.append(list(looks.look({"part": holder}, Restored()).values()))
    return found[1:]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0, 512, 512), [["part.value (0 -> 512)"], []]),
        ((0.5, 0.25, 0.25), [[], []]),
        ((0.5, 0.25, 0.125), [[], ["part.value (0.25 -> 0.125)"]]),
        ((None, 3, 3), [[], []]),
        ((False, True, True), [[], []]),
        (([], [1], [1]), [[], []]),
        (([], [1], [1, 2]), [[], ["part.value"]]),
        ((list(range(5000)), list(range(5001)), list(range(5002))), [[], ["part.value"]]),
        ((torch.zeros(2), torch.ones(2), torch.ones(2)), [[], []]),
        ((torch.zeros(2), torch.ones(2), torch.zeros(2)), [[], ["part.value"]]),
        ((torch.zeros(5000), torch.zeros(5000), torch.zeros(5000)), [[], ["part.value"]]),
        ((np.zeros(5000), np.ones(5000), np.zeros(5000)), [[], ["part.value"]]),
        (({1}, {1, 2}, {1, 2, 3}), [[], ["part.value"]]),
        (({"a": 1}, {"a": 2}, {"a": 3}), [["part.value.a (1 -> 2)"], []]),
    ],
)
def test_what_changes_once_is_no_loss(values, expected):
    assert changes_of(*values) == expected


@pytest.mark.parametrize("entry", [random.SystemRandom(), object(), None, {}, [], np.zeros(0)])
def test_a_state_may_have_entries_that_equal_nothing(entry):
    looks, holder, restored = Looks(), Holder(np.zeros(3)), Restored()
    restored.add_state(holder, {"entry": entry})
    looks.look({"part": holder}, restored)
    holder.value = np.ones(3)
    looks.look({"part": holder}, restored)
    holder.value = np.zeros(3)
    changes = looks.look({"part": holder}, restored)
    assert list(changes) == ["part.value"]


GENERATORS = {
    "python": (random.Random, lambda r: r.shuffle(list(range(2_000)))),
    "numpy": (np.random.default_rng, lambda r: r.permutation(2_000)),
    "numpy, legacy": (np.random.RandomState, lambda r: r.permutation(2_000)),
    "torch": (
        lambda seed: torch.Generator().manual_seed(seed),
        lambda r: torch.randperm(2_000, generator=r),
    ),
}
SEED_AGAIN = {"python": "seed", "numpy, legacy": "seed", "torch": "manual_seed"}


@pytest.mark.parametrize(
    ("name", "is_seeded"),
    [
        *((name, is_seeded) for name in GENERATORS for is_seeded in ("no", "anew")),
        *((name, "again") for name in SEED_AGAIN),
    ],
)
def test_a_generator_is_restored_by_the_epoch_if_the_epoch_seeds_it(name, is_seeded):
    make, draw = GENERATORS[name]
    part = Holder(make(0))
    restored = Restored(epochs={id(part)})
    looks = Looks()
    found = []
    for epoch in range(3):
        if is_seeded == "anew":
            part.value = make(epoch)
        if is_seeded == "again":
            getattr(part.value, SEED_AGAIN[name])(epoch)
        draw(part.value)
        found += looks.look({"part": part}, restored, epoch)
    assert found == (["part.value"] if is_seeded == "no" else [])


def test_a_message_names_at_most_five_paths():
    text = message([f"model.count{number}" for number in range(7)])
    assert "model.count4 and 2 more." in text and "model.count5" not in text
    assert text.count("model.") == MAX_PATHS
