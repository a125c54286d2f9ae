"""Signatures are read from source, as Python would import it."""

import sys
from types import NoneType
from typing import Annotated, Any, Literal

import pytest
from annotated_types import MaxLen, MinLen

from launcher.config.schema.signature import REQUIRED, UNKNOWN, Signature, class_source
from launcher.config.schema.source import NotFound
from launcher.types import PositiveInt

MODULES = {
    "__init__.py": (
        "from .parts import Part as Renamed\nfrom .stars import *\nfrom . import functions\n"
    ),
    "parts.py": (
        """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Optional
import abc
import torch
from torch import Tensor, nn
from launcher.types import PositiveInt
from .aliases import Size

Mode = Literal["a", "b"]

class Base(abc.ABC):
    def __init__(self, width: PositiveInt, *, rate: float = 0.5): ...

class Part(Base):
    'Inherits its constructor.'

class Deep(nn.Module):
    'Has none.'

class Typed:
    def __init__(self, size: Size, mode: Mode = "a", x: "int | None" = None,
                 lr: float | Tensor = 1.0,
                 betas: tuple[float, float] = (0.9, 0.99), sizes: tuple[int] = (1, 2),
                 rates: tuple[float, ...] = (), mixed: tuple[int, str, None] | None = None,
                 maybe: Optional[list[str]] = None,
                 part: Base = None, other: torch.nn.Module | None = None, **rest): ...

    @classmethod
    def make(cls, path: str): ...

@dataclass
class Row:
    name: str
    kind: ClassVar[str] = "row"

@dataclass(frozen=True)
class LongRow(Row):
    tags: list[str] = field(default_factory=list)
    hidden: int = field(default=0, init=False)

class Between(Row):
    shared: int = 3

@dataclass(kw_only=True, eq=False)
class LastRow(Between):
    more: bool
"""
    ),
    "aliases.py": "from typing import Literal\nSize = int | None\n",
    "stars.py": "class Star:\n    def __init__(self, points: int): ...\n",
    "functions.py": (
        """
import functools
from somewhere import decorate
if True:
    def build(model, lr: float = 1e-3, *args, **kwargs): ...
alias = build
@decorate
def decorated(x): ...
bound = functools.partial(build, lr=1)
"""
    ),
    "lazy.py": "def __getattr__(name):\n    raise AttributeError(name)\n",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    (folder / "signed").mkdir()
    for name, text in MODULES.items():
        (folder / "signed" / name).write_text(text)
    sys.path.insert(0, str(folder))
    yield "signed"
    sys.path.remove(str(folder))


def read(target: str) -> Signature:
    return class_source(target).signature


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("parts.Base", ["width", "rate"]),
        ("parts.Part", ["width", "rate"]),
        ("Renamed", ["width", "rate"]),
        ("Star", ["points"]),
        ("functions.build", ["model", "lr"]),
        ("functions.alias", ["model", "lr"]),
        ("parts.Deep", []),
        ("parts.Row", ["name"]),
        ("parts.LongRow", ["name", "tags"]),
        ("parts.LastRow", ["name", "more"]),
    ],
)
def test_the_parameters_of_what_a_name_leads_to(package, target, names):
    assert read(f"{package}.{target}").names == names


def test_types_that_yaml_can_write_are_kept_and_others_drop_out(package):
    spec = read(f"{package}.parts.Typed")
    kinds = {each.name: each.annotation for each in spec.parameters}
    assert kinds == {
        "size": Any,  # an alias of another module
        "mode": Literal["a", "b"],
        "x": int | None,
        "lr": float,
        "betas": Annotated[list[float], MinLen(2), MaxLen(2)],
        "sizes": list[int],
        "rates": list[float],
        "mixed": Annotated[list[Any], MinLen(3), MaxLen(3)] | None,
        "maybe": list[str] | None,
        "part": Any,
        "other": NoneType,
    }
    assert spec.takes_more
    assert read(f"{package}.parts.Part")["width"].annotation == PositiveInt


def test_a_missing_default_differs_from_none(package):
    defaults = {each.name: each.default for each in read(f"{package}.parts.Typed").parameters}
    assert defaults["size"] is REQUIRED
    assert defaults["betas"] == (0.9, 0.99)
    assert defaults["maybe"] is None
    assert read(f"{package}.parts.LongRow")["tags"].default is UNKNOWN


@pytest.mark.parametrize(
    "target",
    ["functions.decorated", "functions.bound", "lazy.Anything", "parts", "parts.Typed.make"],
)
def test_signature_that_only_running_code_defines_is_left_open(package, target):
    spec = class_source(f"{package}.{target}").signature
    assert (spec.parameters, spec.takes_more) == ((), True)


@pytest.mark.parametrize(
    ("target", "where", "name"),
    [
        ("signd.parts.Base", "", "signd"),
        ("signed.prts.Base", "signed", "prts"),
        ("signed.parts.Bse", "signed.parts", "Bse"),
    ],
)
def test_a_name_that_does_not_exist_is_rejected(package, target, where, name):
    with pytest.raises(NotFound) as error:
        read(target)
    assert (error.value.where, error.value.name) == (where, name)
