import json
import os
import subprocess
import sys

import pytest

from launcher.runs.__main__ import main
from support.run_maker import run_maker


@pytest.fixture
def outputs(tmp_path):
    return tmp_path / "outputs"


@pytest.fixture
def make_run(outputs):
    """Makes run folders as training leaves them: record, lock, Hydra's files."""
    return run_maker(outputs)


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
