"""A new project trains at once, and passes its own tests."""

from pathlib import Path

from support import python


def test_a_new_project_passes_its_own_tests(tmp_path: Path) -> None:
    made = python.run("-m", "launcher", "init", "my_project", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    tests = python.run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path / "my_project")
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "2 passed" in tests.stdout
