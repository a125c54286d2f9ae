"""Source files are read again once they have changed, since a notebook's process outlives edits."""

import os

import pytest

from launcher.config.compose.session import session
from launcher.config.schema.signature import class_source, signature_of

CLASS = """
class Base:
    needs = {needs!r}

class Net(Base):
    def __init__(self, width: int = {width}{more}):
        pass
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a module, and begin a session."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / f"{tmp_path.name}.py"

    def write(width: int, more: str = "", needs: str = "a") -> None:
        path.write_text(CLASS.format(width=width, more=more, needs=needs))
        # Two versions may be written within the resolution of the clock.
        write.time += 10**9
        os.utime(path, ns=(write.time, write.time))
        begin_session()

    write.time, write.net = 10**18, f"{tmp_path.name}.Net"
    return write


def begin_session() -> None:
    with session(None):
        pass


def names(target: str) -> list[str]:
    return signature_of(target).names


@pytest.mark.parametrize("change", [{"more": ", depth: int = 1"}, {"needs": "b"}, {"width": 7}])
def test_an_edited_class_is_read_again(write, change):
    write(3)
    before = signature_of(write.net), class_source(write.net).attributes[0]["needs"]
    begin_session()
    assert signature_of(write.net) is before[0], "nothing has changed"
    write(**{"width": 3, **change})
    after = signature_of(write.net), class_source(write.net).attributes[0]["needs"]
    assert after != before
    assert ("depth" in names(write.net)) == ("more" in change)


def test_a_module_that_is_written_later_is_found(write):
    assert class_source(write.net).missing is not None
    write(3)
    assert names(write.net) == ["width"]
