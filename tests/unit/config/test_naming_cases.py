"""The table of docs/naming.md on code, upgrades and the ways to continue: each case is tried."""

import re
from pathlib import Path
from typing import Any

import pytest

from launcher.config.identity import equivalence
from launcher.config.identity.lookup import RunIndex
from launcher.config.schema.signature import _read
from launcher.config.schema.source import bindings, find_module, tree
from launcher.rundir import run_on_disk
from launcher.runs.__main__ import main
from support.composition import run_of
from support.named_runs import begin, config_of
from support.paths import ROOT

pytestmark = pytest.mark.slow

ROW = re.compile(r"^\| ([^|`]*(?:`[^`]*`)?[^|`]*) \| (the same|another) \|$", re.MULTILINE)
NET = (
    "class Net:\n    def __init__(self, width: int = {default}, **more):\n        self.width ="
    " {body}\n"
)


CODE, WIDTH = "model._target_=naming_code.Net", "+model.width=8"


def write_code(folder: Path, default: int, body: str = "width") -> None:
    (folder / "naming_code.py").write_text(NET.format(default=default, body=body))
    for known in (_read, find_module, tree, bindings, equivalence._defaults_of_target):
        known.cache_clear()


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "code is edited": (WIDTH, {"code": (8, "2 * width")}, WIDTH),
    "a default changes in the code alone": ("", {"code": (9,)}, ""),
    "a value and the default change together": (WIDTH, {"code": (9,)}, "+model.width=9"),
    "a class and its YAML get a key with a default": ("", {}, WIDTH),
    "a class gets a key, and its YAML another value": ("", {}, "+model.width=9"),
    "a key or a class is renamed, and the run is adopted: `runs adopt`": (
        "+model.dim=3",
        {"adopted": True},
        "+model.size=3",
    ),
    "an upgrade has a new `identity_version`, and a key is added": (WIDTH, {"version": 2}, ""),
    "a value changes, and the id is typed: `run.id=<id>`": ("", {}, "seed=5 run.id={run}"),
    "a value changes, and the run is adopted: `runs adopt`": (WIDTH, {"adopted": True}, "seed=5"),
    "nothing changes but the tag: `run.tag=again`": ("", {}, "run.tag=again"),
}
"""Overrides of a run, what happens then, and overrides of the next command."""


def rows() -> dict[str, bool]:
    found = ROW.findall((ROOT / "docs" / "naming.md").read_text(encoding="utf-8"))
    return {case: same == "the same" for case, same in found}


def test_each_case_of_the_table_has_a_test():
    assert rows().keys() == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_the_table_of_cases_is_true(case, tmp_path, monkeypatch):
    before, happens, words = CASES[case]
    monkeypatch.syspath_prepend(tmp_path)
    write_code(tmp_path, default=8)
    outputs = tmp_path / "outputs"
    config = config_of(outputs, CODE, *before.split())
    begin(config).end_attempt("preempted", end_step=0)
    now = ["model=mlp", "data=digits", CODE, *words.format(run=config.run.id).split()]
    if "code" in happens:
        write_code(tmp_path, *happens["code"])
    if "version" in happens:
        monkeypatch.setattr(run_on_disk, "IDENTITY_VERSION", happens["version"])
    if "adopted" in happens:
        assert main(["--outputs", str(outputs), "adopt", str(config.run.id), "--", *now]) == 0
    found = run_of([*now, f"paths.outputs={outputs}"], RunIndex()).run.id
    assert (found == config.run.id) == rows()[case]
