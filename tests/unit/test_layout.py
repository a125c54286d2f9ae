"""Where a module's tests are: of `run/lock.py` in `tests/unit/run/test_lock.py`, or where CONTRIBUTING.md says."""

import ast
import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("module", MODULES)
def test_each_module_has_its_tests(module):
    name = own_file(module).relative_to(ROOT)
    assert own_file(module).exists() or module in ELSEWHERE, f"write {name}, or a row in CONTRIBUTING.md"


def test_the_table_is_true():
    for module, files in ELSEWHERE.items():
        assert module in MODULES, f"{module} does not exist"
        assert [file for file in files if not (TESTS / file).is_file()] == []


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_imports_from_a_test(path):
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [getattr(node, "module", None) or "" for node in imports] + [
        name.name for node in imports for name in node.names
    ]
    assert [name for name in names if re.search(r"^(unit|end_to_end|tests)\b|\btest_\w+$", name)] == []
