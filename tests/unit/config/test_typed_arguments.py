"""A class gets its settings as the types that it declares."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional

import pytest
from annotated_types import MinLen

from launcher.config.construct import construct, instantiate
from launcher.errors import ConfigError, config_error


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Typed:
    pair: tuple[int, str] = (0, "")
    many: tuple[int, ...] = ()
    bare: tuple = ()
    names: set[str] = frozenset()  # type: ignore[assignment]
    frozen: frozenset[int] = frozenset()
    root: Path = Path()
    root_or_none: Path | None = None
    optional: Optional[tuple[Path, ...]] = None  # noqa: UP045
    text_or_path: str | Path = ""
    color: Color = Color.RED
    level: Level | None = None
    paths: list[Path] = None  # type: ignore[assignment]
    colors: dict[str, Color] = None  # type: ignore[assignment]
    nested: tuple[tuple[int, int], ...] = ()
    some: Annotated[tuple[int, ...], MinLen(1)] = ()
    list_or_tuple: list[int] | tuple[int, ...] = ()
    point: Point = None  # type: ignore[assignment]
    inner: Any = None
    inners: tuple[Any, ...] = ()
    plain: list[int] = None  # type: ignore[assignment]


VALUES = [
    ("pair", [1, "a"], (1, "a")),
    ("many", [1, 2, 3], (1, 2, 3)),
    ("bare", [1, "a"], (1, "a")),
    ("names", ["a", "b", "a"], {"a", "b"}),
    ("frozen", [1, 1], frozenset({1})),
    ("root", "data/here", Path("data/here")),
    ("root_or_none", "data", Path("data")),
    ("root_or_none", None, None),
    ("optional", ["a", "b"], (Path("a"), Path("b"))),
    ("text_or_path", "data", "data"),
    ("color", "BLUE", Color.BLUE),
    ("color", "blue", Color.BLUE),
    ("level", "HIGH", Level.HIGH),
    ("level", 2, Level.HIGH),
    ("level", None, None),
    ("paths", ["a"], [Path("a")]),
    ("colors", {"x": "RED"}, {"x": Color.RED}),
    ("nested", [[1, 2], [3, 4]], ((1, 2), (3, 4))),
    ("some", [1], (1,)),
    ("list_or_tuple", [1], [1]),
    ("point", [1, 2], Point(1, 2)),
    ("plain", [1], [1]),
]
TARGET = f"{__name__}.Typed"


@pytest.mark.parametrize(("name", "value", "expected"), VALUES)
@pytest.mark.parametrize("how", ["alone", "inside", "partial", "constructed"])
def test_a_setting_has_the_declared_type(name, value, expected, how):
    node = {"_target_": TARGET, name: value}
    if how == "inside":
        made = instantiate({"_target_": TARGET, "inner": {"deep": [node]}}, "model").inner["deep"][
            0
        ]
    elif how == "partial":
        made = instantiate({**node, "_partial_": True}, "model")()
    else:
        made = construct(node) if how == "constructed" else instantiate(node, "model")
    assert type(made) is Typed
    got = getattr(made, name)
    assert got == expected and type(got) is type(expected)
    assert node == {"_target_": TARGET, name: value}, "what is stored stays plain"


def test_objects_that_nodes_make_reach_a_collection():
    inners = [{"_target_": TARGET, "many": [number]} for number in (1, 2)]
    made = instantiate({"_target_": TARGET, "inners": inners}, "model")
    assert [inner.many for inner in made.inners] == [(1,), (2,)] and type(made.inners) is tuple


def test_an_inner_node_that_a_class_builds_itself_stays_as_it_is():
    inner = {"_target_": TARGET, "many": [1]}
    made = instantiate({"_target_": TARGET, "_recursive_": False, "inner": inner}, "model")
    assert made.inner == inner


@pytest.mark.parametrize(
    ("name", "value", "members"),
    [("color", "GREEN", "RED, BLUE"), ("level", 3, "LOW, HIGH"), ("color", 1, "RED, BLUE")],
)
def test_a_value_that_is_no_member_is_one_message(name, value, members):
    with pytest.raises(Exception, match=name) as raised:
        instantiate({"_target_": TARGET, name: value}, "model")
    error = config_error(raised.value)
    assert isinstance(error, ConfigError)
    assert str(error).replace("'", "") == f"model.{name}={value}: should be one of {members}."
