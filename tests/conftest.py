"""Which tests stay together under `pytest -n N --dist loadgroup`, and the state that all tests
inherit."""

import gc
import logging
import os
import random
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from launcher.process import deadline, signals
from support.paths import PYTHONPATH, TESTS

# Started in the background or by nohup, these are ignored, and they would be so in the runs under
# test.
for signum, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, handler)

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

os.environ.setdefault("LAUNCHER_TESTS_SESSION", str(os.getpid()))  # see `support.python`
# Runs are signed with a key, which is not the user's own.
os.environ.setdefault("LAUNCHER_KEY", str(TESTS.parent / ".pytest_cache" / "launcher-key"))
os.environ["PYTHONPATH"] = PYTHONPATH
# Each of hundreds of processes would compile Launcher again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# pytest would rewrite the assertions of each module again, in every worker.
sys.dont_write_bytecode = False

MEMORY, ENOUGH = "/dev/shm", 8 << 30
if os.path.isdir(MEMORY) and os.statvfs(MEMORY).f_bavail * os.statvfs(MEMORY).f_frsize >= ENOUGH:
    # Thousands of checkpoints are fsynced, which a disk feels.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


gc.disable()  # collecting tests only adds objects


def pytest_collection_finish():
    gc.enable()
    gc.freeze()


def pytest_unconfigure():
    # A module of C++ would report what stays frozen, after the summary of the tests.
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests that share a fixture of their module run in one process, so that it is made once. They
    come first: single tests keep all processes busy at the end."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and shares_a_fixture(item):
            item.add_marker(
                pytest.mark.xdist_group(item.path.relative_to(item.config.rootpath).as_posix())
            )
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def shares_a_fixture(item):
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.values() if info is not None else ()
    return any(fixture.scope == "module" for fixtures in definitions for fixture in fixtures)


@pytest.fixture(autouse=True)
def signals_as_they_were():
    """A command that runs in the test's own process installs handlers, which a real one keeps until
    it exits."""
    before = {signum: signal.getsignal(signum) for signum in signals.HANDLED}
    installed_before = signals.handled_signals()
    yield
    installed = signals.handled_signals() - installed_before
    signals.restore({signum: before[signum] for signum in installed & before.keys()})
    signals.forget()
    deadline.disarm()  # otherwise a later test's signal ends all tests two minutes after it


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """A command that runs in the test's own process configures logging with streams that end with
    the test."""
    children = [
        logger
        for logger in logging.root.manager.loggerDict.values()
        if isinstance(logger, logging.Logger)
    ]
    loggers = [logging.root, *children]
    before = [
        (each, each.level, list(each.handlers), each.propagate, each.disabled) for each in loggers
    ]
    yield
    for logger, level, handlers, propagate, disabled in before:
        if logger.level != level:  # `setLevel` empties the caches of all loggers
            logger.setLevel(level)
        logger.handlers[:], logger.propagate, logger.disabled = handlers, propagate, disabled


@pytest.fixture(autouse=True)
def process_as_it_was():
    """The same in any order of tests: environment, folder, and random numbers."""
    environment, folder = dict(os.environ), os.getcwd()
    random.seed(0)
    if "torch" in sys.modules:
        # `torch.manual_seed` formats stacks for CUDA.
        sys.modules["torch"].default_generator.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    yield
    os.chdir(folder)
    for name in {*environment, *os.environ} - {"PYTEST_CURRENT_TEST"}:
        if name not in environment:
            del os.environ[name]
        elif os.environ.get(name) != environment[name]:
            os.environ[name] = environment[name]


@pytest.fixture(autouse=True)
def torch_as_it_was():
    """Settings of torch that a run makes for its whole process, and its process group."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    settings = (
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    )
    before = [value() for value, _ in settings]
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    for (value, change), first in zip(settings, before, strict=True):
        if value() != first:
            change(first)
