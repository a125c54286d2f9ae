"""Hydra 1.3 finds the plugins by their namespace, Hydra 1.4 also by entry points."""

import inspect
import tomllib
from importlib.metadata import EntryPoint

from hydra.core.plugins import Plugins
from hydra.plugins.plugin import Plugin

from hydra_plugins import launcher_dispatch
from support.paths import ROOT


def test_each_plugin_is_an_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["entry-points"]["hydra.plugins"]
    named = {EntryPoint(name, value, "hydra.plugins").load() for name, value in listed.items()}
    defined = {
        each
        for _, each in inspect.getmembers(launcher_dispatch, inspect.isclass)
        if issubclass(each, Plugin) and each.__module__ == launcher_dispatch.__name__
    }
    assert named == defined and defined <= set(Plugins.instance().discover())
