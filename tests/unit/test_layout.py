"""Rules for the files of the tests."""

import re

from support.paths import TESTS


def test_no_test_imports_from_a_test():
    from_a_test = re.compile(
        r"^\s*(from|import) +((unit|end_to_end|tests)\b|.*\btest_\w+ *(,|$| as ))", re.MULTILINE
    )
    for path in TESTS.rglob("test_*.py"):
        assert from_a_test.search(path.read_text()) is None, path
