import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from launcher.config.identity.record_entry import command_record
from launcher.rundir.folder import RunFolder
from launcher.rundir.holder import Holder
from launcher.rundir.record import RunRecord
from launcher.runs.__main__ import main


@pytest.fixture
def outputs(tmp_path):
    return tmp_path / "outputs"


@pytest.fixture
def make_run(outputs):
    """Makes run folders as training leaves them: record, lock, Hydra's files."""
    started = iter(range(1_800_000_000, 1_900_000_000, 60))

    def make(
        name,
        id,
        *,
        config=None,
        choices=None,
        overrides=(),
        state="completed",
        step=10,
        loss=None,
        best=None,
        identity=None,
        config_dir=None,
        rows=None,
    ):
        folder = RunFolder(outputs / name / id).create()
        now = float(next(started))
        record = RunRecord(folder, clock=lambda: now, timer=lambda: now)
        record.data["name"] = name
        hydra = {"overrides": {"task": list(overrides)}, "runtime": {"choices": choices or {}}}
        command = command_record(config or {}, hydra)
        command |= {"identity": identity, "config_dir": config_dir}
        record.begin_attempt(
            start_step=0, max_steps=10, world_size=1, strategy="none", command=command
        )
        record.progress(step, loss=loss, best=best, force=True)
        if state in ("completed", "preempted", "failed"):
            record.end_attempt(state, end_step=step, exit_code=0 if state == "completed" else 143)
        if state == "running":
            folder.lock_path.write_text(json.dumps(asdict(Holder.current())))
        if state == "stale":
            folder.lock_path.write_text(json.dumps(asdict(replace(Holder.current(), started="1"))))
        if rows is not None:
            folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    return make


@pytest.fixture
def change():
    """Changes keys of a run's run.json."""

    def write(folder, **keys):
        record = json.loads(folder.record_path.read_text()) | keys
        folder.record_path.write_text(json.dumps(record))

    return write


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Puts commands of SLURM, each a line of shell, before all others on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)

    def put(**commands):
        for name, line in commands.items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / "bin" / name).chmod(0o755)

    return put


@pytest.fixture
def runs(outputs, capfdbinary):
    """Runs a command line; gives (exit code, standard output, standard error)."""

    def call(*arguments):
        capfdbinary.readouterr()
        code = main(["--outputs", str(outputs), *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


@pytest.fixture
def start(outputs):
    """Starts `python -m launcher.runs` as a process of its own."""

    def begin(*arguments, **options):
        command = [sys.executable, "-m", "launcher.runs", *map(str, arguments)]
        return subprocess.Popen(
            [*command, "--outputs", outputs],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            **options,
        )

    return begin
