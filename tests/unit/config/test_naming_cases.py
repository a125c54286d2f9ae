"""The table of docs/naming.md on code, upgrades and the ways to continue: each case is tried."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.config.identity import equivalence
from launcher.config.identity.lookup import RunIndex
from launcher.config.schema.signature import signature
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


def write_code(folder: Path, default: int, body: str = "width") -> None:
    (folder / "naming_code.py").write_text(NET.format(default=default, body=body))
    for known in (signature, find_module, tree, bindings, equivalence._defaults_of_target):
        known.cache_clear()


class Case:
    """A run, and the command that is given after something has changed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder, self.outputs, self.monkeypatch = folder, folder / "outputs", monkeypatch
        monkeypatch.syspath_prepend(folder)
        write_code(folder, default=8)

    def begin(self, *overrides: str) -> str:
        config = config_of(self.outputs, "model._target_=naming_code.Net", *overrides)
        begin(config).end_attempt("preempted", end_step=0)
        return str(config.run.id)

    def found(self, *overrides: str) -> str:
        words = [
            "model=mlp",
            "data=digits",
            f"paths.outputs={self.outputs}",
            "model._target_=naming_code.Net",
        ]
        return run_of([*words, *overrides], RunIndex()).run.id


def code_is_edited(case: Case) -> bool:
    run = case.begin("+model.width=8")
    write_code(case.folder, default=8, body="2 * width")
    return case.found("+model.width=8") == run


def default_changes(case: Case) -> bool:
    run = case.begin()
    write_code(case.folder, default=9)
    return case.found() == run


def default_and_value_change(case: Case) -> bool:
    run = case.begin("+model.width=8")
    write_code(case.folder, default=9)
    return case.found("+model.width=9") == run


def key_is_added_to_class_and_yaml(case: Case) -> bool:
    run = case.begin()
    return case.found("+model.width=8") == run


def key_is_added_with_another_value(case: Case) -> bool:
    run = case.begin()
    return case.found("+model.width=9") == run


def key_is_renamed_and_adopted(case: Case) -> bool:
    run = case.begin("+model.dim=3")
    words = ["model=mlp", "data=digits", "model._target_=naming_code.Net", "+model.size=3"]
    assert main(["--outputs", str(case.outputs), "adopt", run, "--", *words]) == 0
    return case.found("+model.size=3") == run


def version_changes(case: Case) -> bool:
    run = case.begin("+model.width=8")
    case.monkeypatch.setattr(run_on_disk, "IDENTITY_VERSION", 2)
    return case.found() == run


def id_is_typed(case: Case) -> bool:
    run = case.begin()
    return case.found("seed=5", f"run.id={run}") == run


def run_is_adopted(case: Case) -> bool:
    run = case.begin("+model.width=8")
    words = ["model=mlp", "data=digits", "model._target_=naming_code.Net", "seed=5"]
    assert main(["--outputs", str(case.outputs), "adopt", run, "--", *words]) == 0
    return case.found("seed=5") == run


def tag_is_new(case: Case) -> bool:
    run = case.begin()
    return case.found("run.tag=again") == run


CASES: dict[str, Callable[[Case], bool]] = {
    "code is edited": code_is_edited,
    "a default changes in the code alone": default_changes,
    "a value and the default change together": default_and_value_change,
    "a class and its YAML get a key with a default": key_is_added_to_class_and_yaml,
    "a class gets a key, and its YAML another value": key_is_added_with_another_value,
    "a key or a class is renamed, and the run is adopted: `runs adopt`": key_is_renamed_and_adopted,
    "an upgrade has a new `identity_version`, and a key is added": version_changes,
    "a value changes, and the id is typed: `run.id=<id>`": id_is_typed,
    "a value changes, and the run is adopted: `runs adopt`": run_is_adopted,
    "nothing changes but the tag: `run.tag=again`": tag_is_new,
}


def rows() -> dict[str, bool]:
    found = ROW.findall((ROOT / "docs" / "naming.md").read_text(encoding="utf-8"))
    return {case: same == "the same" for case, same in found}


def test_each_case_of_the_table_has_a_test():
    assert rows().keys() == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_the_table_of_cases_is_true(case, tmp_path, monkeypatch):
    assert CASES[case](Case(tmp_path, monkeypatch)) == rows()[case]
