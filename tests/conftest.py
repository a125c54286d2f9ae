"""Which tests stay together when processes share them (`pytest -n 2 --dist loadgroup`), and what they inherit."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest

from support.paths import TESTS

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background: the runs under test hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["PYTHONPATH"] = str(TESTS)  # the processes under test import their hooks from `support`


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests that share a fixture of their module go to one process, so that it is made once."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(item.config.rootpath).as_posix()))


def shares_a_fixture(item):
    made = getattr(item, "_fixtureinfo", None)
    known = made.name2fixturedefs.values() if made is not None else ()
    return any(one.scope == "module" for several in known for one in several)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that runs in the test's own process sets logging up for itself, on streams that end with the test."""
    known = logging.root.manager.loggerDict
    loggers = [logging.root, *(one for one in known.values() if isinstance(one, logging.Logger))]
    before = [(one, one.level, list(one.handlers), one.propagate, one.disabled) for one in loggers]
    yield
    for one, level, handlers, propagate, disabled in before:
        one.setLevel(level)
        one.handlers[:], one.propagate, one.disabled = handlers, propagate, disabled
