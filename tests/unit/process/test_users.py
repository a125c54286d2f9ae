"""Whose a file is, and what its owner can be asked for."""

import os
import pwd

import pytest

from launcher.process.users import ask_owner, explain_denial, other_owner, this_user

STRANGER = 54321


def test_the_user_of_this_process_has_its_name():
    assert this_user() == pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.parametrize("name", ["run", "run/new", "run/metrics.jsonl"])
@pytest.mark.parametrize("is_denied", [True, False])
def test_an_error_names_the_owner_of_the_nearest_folder_that_exists(tmp_path, name, is_denied):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", STRANGER, -1)
    error = PermissionError(13, "Permission denied", str(tmp_path / name))
    if not is_denied:
        error = OSError(28, "No space left on device", str(tmp_path / name))
    cause, remedy = explain_denial(error, tmp_path)
    assert cause.startswith(error.strerror)
    assert (f"{tmp_path / 'run'} belongs to {STRANGER}" in cause) == is_denied
    assert (f"ask {STRANGER} for `chmod -R g+rwX {tmp_path / 'run'}`" in remedy) == is_denied


def test_a_folder_of_this_user_is_nobody_elses(tmp_path):
    error = PermissionError(13, "Permission denied", str(tmp_path / "x"))
    assert explain_denial(error, tmp_path) == ("Permission denied", "")
    assert other_owner(tmp_path) is None and ask_owner(tmp_path) == ""
    assert other_owner(tmp_path / "missing") is None
