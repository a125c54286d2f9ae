"""Which of the user's own source files a process has imported, and which have changed since."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.rundir import imported_sources
from launcher.rundir.imported_sources import digest_of, source_changes

PROBE = """
import importlib, json, sys
sys.path[:0] = sys.argv[2:]
for name in sys.argv[1].split(","):
    importlib.import_module(name)
import launcher.rundir.imported_sources as sources
print(json.dumps(sources.digest_imported_sources()))
"""


def project(root: Path) -> Path:
    files = {
        "mine/__init__.py": "from mine import net",
        "mine/net.py": "WIDTH = 1",
        "mine/late.py": "LATE = 1",
        "space/deep/part.py": "PART = 1",
        "single.py": "ONE = 1",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def imported(modules: str, cwd: Path, *path: Path) -> dict[str, str]:
    """The sources of a process that imports these modules."""
    script = cwd / "probe.py"
    script.write_text(PROBE)
    words = [sys.executable, str(script), modules, *map(str, path)]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_own_files_are_known_by_their_modules_wherever_they_are(tmp_path):
    here, there = project(tmp_path / "here"), project(tmp_path / "there")
    (tmp_path / "linked").symlink_to(here)
    modules, expected = "mine,space.deep.part,single,yaml,launcher.errors", {
        "mine/__init__.py", "mine/net.py", "space/deep/part.py", "single.py", "probe.py"
    }  # fmt: skip
    found = imported(modules, here)
    assert found.keys() == expected
    assert imported(modules, tmp_path, there) == found, "on the path, in another place"
    assert imported(modules, tmp_path, tmp_path / "linked") == found, "behind a link"


def edit(root: Path) -> None:
    (root / "mine/net.py").write_text("WIDTH = 2")


def remove(root: Path) -> None:
    (root / "mine/late.py").unlink()


def shadow(root: Path) -> None:
    (root / "single.py").unlink()
    (root / "single").mkdir()
    (root / "single/__init__.py").write_text("ONE = 1")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The sources of a process in another copy of the project."""
    found = imported("mine.late,space.deep.part,single", project(tmp_path_factory.mktemp("stored")))
    found.pop("probe.py")
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda root: None, []),
        (lambda root: (root / "mine/new.py").write_text(""), []),
        (edit, ["mine/net.py: was edited."]),
        (remove, ["mine/late.py: is gone."]),
        (shadow, ["single.py: is gone."]),
        (
            lambda root: (edit(root), remove(root)),
            ["mine/net.py: was edited.", "mine/late.py: is gone."],
        ),
    ],
)
def test_changes_are_found_without_importing(tmp_path, monkeypatch, stored, change, expected):
    root = project(tmp_path)
    change(root)
    monkeypatch.syspath_prepend(str(root))
    assert source_changes(stored, {}) == expected
    assert not {"mine", "single", "space"} & sys.modules.keys()


def test_source_edited_after_its_import_counts_as_imported():
    stored = {"mine/net.py": "1", "mine/old.py": "1"}
    assert source_changes(stored, {"mine/net.py": "2", "mine/new.py": "1", "mine/old.py": "1"}) == [
        "mine/net.py: was edited.",
        "mine/new.py: is new.",
    ]
    assert source_changes({}, {"mine/net.py": "2"}) == [], "nothing is known of the earlier process"
    many = {f"mine/part_{number:02}.py": "1" for number in range(20)}
    (sentence,) = source_changes(many, dict.fromkeys(many, "2"))
    assert sentence.endswith("mine/part_07.py and 12 more: was edited.")


def test_an_edit_after_the_import_is_not_what_runs(tmp_path, monkeypatch):
    import importlib

    (tmp_path / "edited_later.py").write_text("A = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("edited_later")
    first = imported_sources.digest_imported_sources()["edited_later.py"]
    (tmp_path / "edited_later.py").write_text("A = 22")
    assert imported_sources.digest_imported_sources()["edited_later.py"] == first
    importlib.reload(module)
    assert (
        imported_sources.digest_imported_sources()["edited_later.py"]
        == digest_of(tmp_path / "edited_later.py")
        != first
    )
    del sys.modules["edited_later"]


def test_a_module_that_takes_the_name_of_a_library_is_the_users(tmp_path, monkeypatch):
    """Libraries are looked at once; a module of another object is another module."""
    import importlib

    library = tmp_path / "site-packages"
    for folder in (library, tmp_path):
        folder.mkdir(exist_ok=True)
        (folder / "taken_name.py").write_text("A = 1")
    for folder, names in ((library, set()), (tmp_path, {"taken_name.py"})):
        monkeypatch.syspath_prepend(str(folder))
        importlib.import_module("taken_name")
        for _ in range(2):
            found = imported_sources.digest_imported_sources().keys() & {"taken_name.py"}
            assert found == names
        del sys.modules["taken_name"]
