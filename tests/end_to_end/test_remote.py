"""Runs whose checkpoints are copied to a remote store."""

import shutil
from pathlib import Path
from shlex import split

import pytest

from support.runner import final_state, launch, metrics, record, run_folder, stop_at

RUN = split(
    "model=mlp data=digits data.batch_size=60 trainer.max_steps=40 hooks.checkpointing.interval=10"
)


def test_a_run_resumes_on_another_disk(tmp_path: Path) -> None:
    there = f"hooks.checkpointing.remote=file://{tmp_path}/there"
    whole, outputs = tmp_path / "whole", tmp_path / "outputs"
    assert launch(whole, *RUN).returncode == 0
    assert launch(outputs, *RUN, there, *stop_at(33)).returncode == 143
    name = run_folder(outputs).name
    shutil.rmtree(outputs)
    done = launch(outputs, *RUN, there)
    assert done.returncode == 0, done.output
    assert "Fetched step-00000033" in done.output and run_folder(outputs).name == name
    assert final_state(outputs) == final_state(whole)
    assert metrics(outputs) == [line for line in metrics(whole) if line["step"] > 33]


def test_copies_that_fail(tmp_path: Path) -> None:
    """Training continues and the local checkpoints stay. This run fails; the next one makes up for
    the copies."""
    there = f"hooks.checkpointing.remote=file://{tmp_path}/there"
    gone = "+tracker.gone={_target_:support.broken_disk.BrokenHome,steps:[20,40]}"
    done = launch(tmp_path / "outputs", *RUN, there, gone)
    assert done.returncode == 1 and "Traceback" not in done.output, done.output
    assert done.output.count("could not be written: rank 0: ConnectionError: no way there") == 3
    assert "no way there" in record(tmp_path / "outputs")["attempts"][-1]["reason"]
    assert record(tmp_path / "outputs")["step"] == 40
    again = launch(tmp_path / "outputs", *RUN, there)
    assert again.returncode == 0 and "step-00000040 (step 40)" in again.output
    copies = tmp_path.glob("there/*/*/step-*/manifest.json")
    assert sorted(int(path.parent.name[5:13]) for path in copies) == [10, 30, 40]


def test_a_remote_path_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"a file")
    done = launch(tmp_path / "outputs", *RUN, f"hooks.checkpointing.remote=file://{tmp_path}/there")
    assert done.returncode == 2 and "hooks.checkpointing.remote=file://" in done.output, done.output


@pytest.mark.parametrize("scheme", ["nosuch", "gs"])
def test_an_unknown_scheme(tmp_path: Path, scheme: str) -> None:
    done = launch(tmp_path / "outputs", *RUN, f"hooks.checkpointing.remote={scheme}://bucket/x")
    assert (
        done.returncode == 2 and f"hooks.checkpointing.remote={scheme}://bucket/x: " in done.output
    )
    assert not (tmp_path / "outputs").exists()
