"""Files that a submission writes, and removes again."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.config.run_config import from_stored
from launcher.dispatch.slurm import task
from launcher.dispatch.slurm.task import _is_submitted_again
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.slurm.submission import (
    FROZEN,
    Submission,
    SubmissionsFolder,
    freeze,
    new_submission,
    one_at_a_time,
    read_frozen,
    undone_on_failure,
    write_script,
)
from support.broken_disk import room_for
from support.run_maker import begin_run

HYDRA = {"overrides": {"task": ["seed=1"]}, "job": {"num": "${oc.env:NOT_SET}"}}


def config(path: Path) -> dict:
    return {"run": {"dir": str(path), "id": path.name, "name": path.parent.name}, "seed": 1}


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "outputs" / "gpt" / "1a2b")
    freeze(folder, config(folder.path), HYDRA, Submission("/s/job-0.sh", 0))
    return folder


def test_a_frozen_configuration_is_read_back(folder):
    assert read_frozen(folder) == (config(folder.path), HYDRA)
    settings = from_stored(*read_frozen(folder))
    assert settings.seed == 1 and settings.overrides == ["seed=1"]
    assert RunRecord(folder).state == "queued"
    assert sorted(path.name for path in folder.path.rglob("*") if path.is_file()) == [
        "run.json",
        "submission.json",
    ]


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "{}", '{"job": 1}', '{"job": null}'])
def test_a_damaged_job_note_is_none(folder, text):
    (folder.path / FROZEN).write_text(text)
    assert Submission.read(folder) is None


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "error", [ConfigError("SLURM rejected it."), OSError("disk full"), SystemExit(143)]
)
def test_a_rejected_submission_restores_what_was_there(folder, tmp_path, error):
    begin_run(folder).end_attempt("failed", end_step=1, exit_code=1)
    before = files(tmp_path)
    fresh = RunFolder(tmp_path / "outputs" / "mlp" / "3c4d")
    with pytest.raises(type(error)), undone_on_failure([folder, fresh]):
        for run in (folder, fresh):
            freeze(run, {**config(run.path), "seed": 2}, None, Submission("/s/job-1.sh"))
        raise error
    assert files(tmp_path) == before
    assert not fresh.path.parent.exists()


@pytest.mark.parametrize(
    ("content", "script", "leaves"),
    [
        ('{"job": {"script": "/new.sh"}}', "/new.sh", False),
        ('{"job": {"script": "/newer.sh"}}', "/new.sh", True),
        (None, "/new.sh", True),  # its submission was undone
        ("", "/new.sh", False),  # it cannot be read
        (None, None, False),
    ],
)
def test_a_job_leaves_a_run_that_was_submitted_again(folder, monkeypatch, content, script, leaves):
    monkeypatch.delenv("LAUNCHER_SCRIPT", raising=False)
    if script is not None:
        monkeypatch.setenv("LAUNCHER_SCRIPT", script)
    (folder.path / FROZEN).unlink()
    if content is not None:
        (folder.path / FROZEN).write_text(content)
    assert _is_submitted_again(folder) == leaves


def test_a_submission_leaves_no_folder_of_its_own(tmp_path):
    outputs = tmp_path / "new" / "outputs"
    with one_at_a_time(outputs):
        assert (outputs / ".slurm" / "run.lock").exists()
    assert not (tmp_path / "new").exists()
    with room_for(0), pytest.raises(ConfigError, match="cannot be written"), one_at_a_time(outputs):
        raise AssertionError
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])
def test_a_folder_that_another_command_removes_meanwhile_is_made_again(
    tmp_path, monkeypatch, error
):
    mkdir, failures = Path.mkdir, [error(0, "removed while it was made")]

    def fail_once(path: Path, **options: Any) -> None:
        if failures:
            raise failures.pop()
        mkdir(path, **options)

    monkeypatch.setattr(Path, "mkdir", fail_once)
    with one_at_a_time(tmp_path):
        assert (tmp_path / ".slurm" / "run.lock").exists()


def test_a_file_in_the_place_of_the_folder_is_rejected(tmp_path):
    (tmp_path / ".slurm").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written"), one_at_a_time(tmp_path):
        raise AssertionError
    assert (tmp_path / ".slurm").read_text() == "a file"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize(
    ("folder", "key"), [(RunFolder, "run.dir"), (SubmissionsFolder, "paths.outputs")]
)
def test_a_full_disk_is_named(tmp_path, error, folder, key):
    with pytest.raises(ConfigError) as raised, folder(tmp_path).explain_write_errors():
        raise OSError(error, os.strerror(error))
    (message,) = raised.value.messages
    assert message.startswith(f"{key}='{tmp_path}': cannot be written ({os.strerror(error)})")
    assert ("make room on its disk" in message) == (error != errno.EACCES)


def test_the_folder_of_a_submission_is_named_if_the_disk_is_full(tmp_path):
    with room_for(0), pytest.raises(ConfigError, match=r"^paths\.outputs='.*/\.slurm"):
        write_script(new_submission(tmp_path) / "job-0.sh", "#!/bin/bash", [])


@pytest.mark.parametrize("count", [1, 4])
def test_a_submission_of_an_earlier_version_may_have_had_several_runs_in_its_job(
    folder, tmp_path, capsys, count
):
    freeze(folder, {"run": {}, "dispatch": {"runs_per_job": count, "mem": "1G"}}, None, None)
    if count == 1:
        assert read_frozen(folder)[0]["dispatch"] == {"mem": "1G"}
        return
    with pytest.raises(ConfigError, match=r"dispatch\.runs_per_job=4, which is left out"):
        read_frozen(folder)
    assert task.run_task(folder.path) == 2
    assert "repeat its command without it" in capsys.readouterr().err
    (tmp_path / "runs.txt").write_text(f"{folder.path}\n")
    assert task.run_task(tmp_path) == 2
    assert "several runs in a job are left out" in capsys.readouterr().err


def test_a_job_starts_only_in_the_folder_that_was_submitted(folder, tmp_path, monkeypatch, capsys):
    """A submission is checked where it is made, so its job needs nobody. A copy of the folder was
    not submitted."""
    started: list[Path] = []
    monkeypatch.setattr(task, "_work", lambda folder: started.append(folder.path))
    (tmp_path / "link").symlink_to(tmp_path / "outputs")
    other_job = folder.path / ".jobs" / "evaluate-1"
    copy = tmp_path / "elsewhere" / "1a2b"
    shutil.copytree(folder.path, copy)
    shutil.copytree(folder.path, other_job)
    submitted = [folder.path, tmp_path / "link" / "gpt" / "1a2b", other_job]
    assert [task.run_task(path) for path in (*submitted, copy)] == [0, 0, 0, 2]
    assert started == submitted
    assert f"is not {copy}, so this is no submission of it" in capsys.readouterr().err


def test_a_further_array_leaves_the_functions_that_a_job_reads(tmp_path):
    runs = [RunFolder(tmp_path / "run")]
    write_script(tmp_path / "job-0.sh", "#!/bin/bash", runs)
    (functions := tmp_path / "batch.sh").write_text("of the first array")
    write_script(tmp_path / "job-1.sh", "#!/bin/bash", runs)
    assert functions.read_text() == "of the first array"
