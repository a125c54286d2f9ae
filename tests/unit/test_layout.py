"""Where a module's tests are: of `run/lock.py` in `tests/unit/run/test_lock.py`, or where CONTRIBUTING.md says."""

import re
from pathlib import Path

from support.paths import ROOT, TESTS

SOURCE = ROOT / "src" / "launcher"
MODULES = sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
ROW = re.compile(r"^\| (`[\w/]+\.py`.*) \| (`.+`.*) \|$", re.MULTILINE)
NAME = re.compile(r"`([^`]+)`")
ELSEWHERE = {
    module: NAME.findall(files)
    for modules, files in ROW.findall((ROOT / "CONTRIBUTING.md").read_text())
    for module in NAME.findall(modules)
}


def own_file(module):
    return TESTS / "unit" / Path(module).with_name(f"test_{Path(module).name}")


def test_each_module_has_its_tests():
    without = [module for module in MODULES if not own_file(module).exists() and module not in ELSEWHERE]
    assert without == [], (
        f"write {[str(own_file(each).relative_to(ROOT)) for each in without]}, or rows in CONTRIBUTING.md"
    )


def test_the_table_is_true():
    for module, files in ELSEWHERE.items():
        assert module in MODULES, f"{module} does not exist"
        assert [file for file in files if not (TESTS / file).is_file()] == []


def test_no_test_imports_from_a_test():
    from_a_test = re.compile(r"^\s*(from|import) +((unit|end_to_end|tests)\b|.*\btest_\w+ *(,|$| as ))", re.MULTILINE)
    for path in TESTS.rglob("test_*.py"):
        assert from_a_test.search(path.read_text()) is None, path
