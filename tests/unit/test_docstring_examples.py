"""The example in the docstring of each public class, which may use the one of `BaseTrainer`."""

import doctest
import inspect
from pathlib import Path

import pytest
import torch

import launcher
from launcher import api

CLASSES = {
    name: value
    for name, value in vars(api).items()
    if inspect.isclass(value)
    and not value.__module__.startswith("launcher.compat")
    and not issubclass(value, Warning)
}
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def example_of(name: str, names: dict[str, object]) -> doctest.DocTest:
    """Return the example of a class, whose commands see `names`."""
    doc = inspect.cleandoc(vars(CLASSES[name])["__doc__"])
    return doctest.DocTestParser().get_doctest(doc, names, name, None, 0)


@pytest.fixture(scope="module")
def names():
    """Return the names that an example may use: the public ones, and the example of BaseTrainer."""
    names = {**CLASSES, "launcher": launcher, "torch": torch, "Path": Path}
    example = example_of("BaseTrainer", names)
    doctest.DocTestRunner(optionflags=FLAGS).run(example, clear_globs=False)
    return {**example.globs}


@pytest.mark.parametrize("name", CLASSES)
def test_the_example_of_a_public_class_runs(name, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = example_of(name, {**names})
    assert example.examples, f"{name} has no example"
    printed: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=printed.append)
    assert outcome.failed == 0, "".join(printed)
