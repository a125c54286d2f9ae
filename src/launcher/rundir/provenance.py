"""Provenance of a run's numbers: the code's commit, the libraries' versions, the SLURM job."""

import json
import os
import platform
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from launcher.process.git import run_git
from launcher.process.plural import plural
from launcher.rundir.imported_sources import imported_files
from launcher.rundir.repositories import other_repositories

# Modules and distributions that may change a run's numbers. They are recorded only if imported,
# since not every run uses them.
VERSIONED = {
    "torch": "torch",
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "numpy": "numpy",
    "deepspeed": "deepspeed",
    "transformers": "transformers",
}

GIT_TIMEOUT = 2.0
"""Seconds that a start waits for git."""
SNAPSHOT = "LAUNCHER_SNAPSHOT"
"""The variable with the file of a snapshot of the code, see `launcher.slurm.snapshot`."""
MACHINE = "machine.yaml"
"""The file of a checkpoint with `machine_state`."""


def slurm_job_id() -> str | None:
    """Return the SLURM job of this process (an array's task as `1234_5`), or None."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


def restart_count() -> int:
    """Return how often SLURM has launched this job before."""
    count = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def is_restart() -> bool:
    """Return whether SLURM has launched this job before."""
    return restart_count() > 0


def git_state(folder: str | os.PathLike[str]) -> dict[str, object] | None:
    """Return {"commit": hash, "dirty": bool} of a repository; untracked files are not dirty.

    A submodule is dirty with another commit than the repository has, or with changes.

    Returns:
        None without a repository, without git, or if it takes too long.
    """
    options = "--porcelain=v2 --branch --untracked-files=no --ignore-submodules=untracked"
    status = run_git(folder, "status", *options.split(), timeout=GIT_TIMEOUT)
    if status is None:
        return None
    commit, dirty = None, False
    for line in status.decode(errors="replace").splitlines():
        if line.startswith("# branch.oid "):
            commit = line.split()[-1]
        elif line and not line.startswith("#"):
            dirty = True
    return None if commit in (None, "(initial)") else {"commit": commit, "dirty": dirty}


def code_that_trains(code: Mapping[str, Any] | None) -> dict[str, object] | None:
    """Return the commit and the state of the code that this process has imported.

    Repositories of imported files, other than the current folder's, have theirs in `repositories`.

    Args:
        code: from `code_state`. None: git is asked for the state.
    """
    state: dict[str, object] | None = own_state() if code is None else code["git"]
    files = outside_snapshot(imported_files().values())
    others = {str(folder): git_state(folder) for folder in other_repositories(files)}
    if not others:
        return state
    state = state or {"commit": None, "dirty": False}
    is_dirty = any(other is None or other["dirty"] for other in (state, *others.values()))
    return {**state, "dirty": is_dirty, "repositories": others}


def own_state() -> dict[str, object] | None:
    """Return `git_state` of the current folder, or of the snapshot that runs in its place."""
    if (snapshot := snapshot_file()) is None:
        return git_state(Path.cwd())
    saved = json.loads(snapshot.read_bytes())
    return {"commit": saved["commit"], "dirty": saved["dirty"]}


def snapshot_file() -> Path | None:
    """Return the file that describes the snapshot of the code which this process runs, if any."""
    file = os.environ.get(SNAPSHOT)
    return None if file is None or not os.path.exists(file) else Path(file)


def outside_snapshot(files: Iterable[str]) -> list[str]:
    """Return the files that are not part of the snapshot which this process runs."""
    if (snapshot := snapshot_file()) is None:
        return list(files)
    return [file for file in files if not Path(file).is_relative_to(snapshot.parent)]


def versions(also: Collection[str] = ()) -> dict[str, str]:
    """Return the versions of Python, this package, and imported libraries that change numbers.

    Libraries in `also` are listed even if they are not imported.
    """
    used = [name for name in VERSIONED if name in sys.modules or name in also]
    names = {"launcher": "torch-launcher", **{name: VERSIONED[name] for name in used}}
    all_versions = {module: _version_of(name) for module, name in names.items()}
    installed = {module: version for module, version in all_versions.items() if version is not None}
    return {"python": sys.version.split()[0], **installed}


@cache
def _version_of(distribution: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    from importlib import metadata  # 0.05 s, needed only to start a run

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def code_state(also: Collection[str] = ()) -> dict[str, object]:
    """Return the code's commit and the versions, for the drift report of a later resume."""
    return {"git": own_state(), "versions": versions(also)}


def machine_state(
    device: str, threads: int, kernels: Mapping[str, str], data: str | None = None
) -> dict[str, object]:
    """Return the properties of a machine that change a run's last bits.

    Args:
        device: the name of the device that trains.
        threads: threads of an operation on the CPU.
        kernels: properties that choose kernels on the CPU.
        data: the fingerprint of the training data, or None if they have none.
    """
    state = {"processor": processor(), **kernels, "threads": threads, "device": device}
    state |= {} if (version := driver()) is None else {"driver": version}
    return state | ({} if data is None else {"data": data})


def describe_machine(machine: Mapping[str, Any]) -> str:
    """Format `machine_state` without the data. Equal lines should compute equal bits."""
    words = {
        **{key: str(value) for key, value in machine.items() if key != "data"},
        "threads": plural(machine["threads"], "thread"),
    }
    return ", ".join(words.values())


def driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"\d+\.\d+(?:\.\d+)?", text)
    return None if match is None else match[0]


def processor() -> str:
    """Return the processor's model, or the architecture if the model is not known."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
