"""`make size` counts code, not prose."""

from benchmarks.size import measure, table

TEXT = '''"""Docstring."""


def compared(one, other):
    """Compare.

    In two lines.
    """
    if one and other or one:  # a comment
        return one
    return (
        other
    )
'''


def test_docstrings_and_comments_are_not_code():
    counts = measure(TEXT)
    assert (counts["lines"], counts["code"], counts["functions"]) == (13, 6, 1)
    assert (counts["participles"], counts["decisions"], counts["tokens"]) == (1, 3, 21)


def test_a_package_has_a_row_with_the_share_that_a_run_reaches(tmp_path):
    (tmp_path / "launcher" / "data").mkdir(parents=True)
    (tmp_path / "launcher" / "__init__.py").write_text('"""Nothing."""\n')
    (tmp_path / "launcher" / "data" / "rows.py").write_text(TEXT)
    (tmp_path / "launcher" / "data" / "files.py").write_text(TEXT)
    rows = {line.split()[0]: line.split() for line in table(tmp_path, {"launcher.data.rows"})[1:]}
    assert rows.keys() == {"launcher", "launcher/data", "all"}
    assert rows["launcher/data"][1:4] == ["2", "26", "12"]
    assert rows["all"][-2:] == ["50.0", "%"]
