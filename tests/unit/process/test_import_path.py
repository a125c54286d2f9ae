"""Commands import nothing from a folder of a run, and need a current folder."""

import os
import sys

import pytest

from support.python import run

COMMANDS = {
    "launcher": ["-m", "launcher", "--cfg", "job", "-p", "seed"],
    "runs": ["-m", "launcher.runs", "list"],
    "certify": ["-m", "launcher.certify", "--", "true"],
    "freeze": ["-m", "launcher.dispatch.freeze", "file"],
}
HIDING = ("yaml", "argparse", "orjson", "signal", "hydra")
"""Modules that the commands import."""


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_current_folder_that_was_removed_is_a_sentence(words, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    leave = "import os, sys; os.rmdir(os.getcwd()); "
    done = run(
        "-c", f"{leave}os.execv(sys.executable, [sys.executable, *{words}])", cwd=gone, real=True
    )
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert done.stderr.startswith("The current folder ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("inside", ["", "checkpoints/step-00000001"])
@pytest.mark.parametrize("name", ["launcher", "runs"])
def test_nothing_is_imported_from_a_folder_of_a_run(name, inside, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    folder = tmp_path / inside
    folder.mkdir(parents=True, exist_ok=True)
    for module in HIDING:
        (folder / f"{module}.py").write_text(f"print('{module} of the run was imported')\n")
    done = run(*COMMANDS[name], cwd=folder, real=True)
    assert "of the run" not in done.stdout + done.stderr and done.returncode == 0, done.stderr


def test_a_project_is_imported_from_the_current_folder(tmp_path, monkeypatch):
    from launcher.process import import_path

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "environ", {**os.environ})
    import_path.leave_out_run_folder()
    import_path.add_current_folder()
    assert sys.path[0] == str(tmp_path) and "PYTHONSAFEPATH" not in os.environ
    (tmp_path / "run.json").touch()
    import_path.leave_out_run_folder()
    import_path.add_current_folder()
    assert str(tmp_path) not in sys.path and os.environ["PYTHONSAFEPATH"] == "1"
