import gc
from collections.abc import Iterator

import pytest

from launcher.process import collector


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    yield
    collector.resume()
    gc.enable()
    gc.unfreeze()


def test_resume_after_pause_collects_new_objects_alone() -> None:
    collector.pause()
    assert not gc.isenabled()
    collector.resume()
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    collector.resume()
    # Frozen objects may die.
    assert gc.get_freeze_count() <= frozen, "what was built since may have files to close"


def test_resume_without_pause_keeps_what_the_program_has_set() -> None:
    gc.disable()
    collector.resume()
    assert not gc.isenabled()
    collector.pause()
    collector.resume()
    assert not gc.isenabled()


def test_second_pause_still_ends_with_resume() -> None:
    collector.pause()
    collector.pause()
    collector.resume()
    assert gc.isenabled()
