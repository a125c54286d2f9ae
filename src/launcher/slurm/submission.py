"""The files of a submission: each run's frozen configuration, and the list that tells a SLURM job its run.

<run folder>/submission.json        the resolved configuration and Hydra's node; the job reads nothing else
<run folder>/slurm.json             the job's id, once sbatch has returned it
<outputs>/.slurm/<submission>/      script, runs.txt (a run folder per task of the array), snapshot of the code
"""

import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from launcher.errors import ConfigError
from launcher.run.files import replace_file
from launcher.run.folder import RunFolder
from launcher.run.lock import is_held
from launcher.run.record import RunRecord, iso
from launcher.slurm.scheduler import QueuedJob

FROZEN, JOB_NOTE, RUNS = "submission.json", "slurm.json", "runs.txt"
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

logger = logging.getLogger("launcher")


def freeze(config: Mapping[str, Any], hydra: Mapping[str, Any] | None) -> RunFolder:
    """Write what a job reads into its run's folder, and `queued` into run.json. It takes about 3 ms per run, without
    torch.

    Args:
        config: resolved, as plain containers (see `schema.validate`).
        hydra: Hydra's node as plain containers, interpolations unresolved.
    Raises:
        OSError: the folder cannot be written.
    """
    folder = RunFolder(config["run"]["dir"])
    folder.create()
    replace_file(folder.path / FROZEN, json.dumps({"config": config, "hydra": hydra}, default=str).encode())
    folder.hydra.mkdir(exist_ok=True)
    _dump(folder.hydra / "config.yaml", config)
    if hydra is not None:
        _dump(folder.hydra / "overrides.yaml", hydra["overrides"]["task"])
        _dump(folder.hydra / "hydra.yaml", {"hydra": hydra})
    RunRecord(folder).queue()
    return folder


def frozen(folder: RunFolder) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The arguments of `freeze`.

    Raises:
        OSError, ValueError: the file is missing or broken.
    """
    saved = json.loads((folder.path / FROZEN).read_bytes())
    return saved["config"], saved["hydra"]


def load_frozen(folder: RunFolder) -> tuple[DictConfig, DictConfig | None]:
    """The same as configurations; Hydra's node is in one of its own.

    Raises:
        OSError, ValueError: the file is missing or broken.
    """
    config, hydra = frozen(folder)
    return OmegaConf.create(config), None if hydra is None else OmegaConf.create({"hydra": hydra})


def _dump(path: Path, value: Any) -> None:
    path.write_text(yaml.dump(value, Dumper=DUMPER, sort_keys=False, allow_unicode=True))


def why_skipped(folder: RunFolder, queue: Mapping[str, QueuedJob]) -> str | None:
    """Why a run is not submitted: it is completed, running or queued; None: it can be.

    Args:
        queue: jobs that have not ended, see `scheduler.queue`.
    """
    if folder.record_path.exists():
        if RunRecord(folder).state == "completed":
            return "already completed"
        if is_held(folder):
            return "running"
    job = queue.get(job_note(folder).get("job_id", ""))
    return None if job is None else f"in the queue as job {job.id} ({job.state.lower()})"


def job_note(folder: RunFolder) -> dict[str, Any]:
    """A run's newest SLURM job: `job_id`, `submitted`, `script`; empty if it had none."""
    try:
        note = json.loads((folder.path / JOB_NOTE).read_bytes())
        return note if isinstance(note, dict) else {}
    except (OSError, ValueError):
        return {}


def write_job_notes(folders: Sequence[RunFolder], job: str, is_array: bool, script: Path) -> list[str]:
    """Write its job into each run's folder; returns the ids in the same order."""
    ids = [f"{job}_{index}" if is_array else job for index in range(len(folders))]
    now = iso(time.time())
    for folder, job_id in zip(folders, ids, strict=True):
        text = json.dumps({"job_id": job_id, "submitted": now, "script": str(script)})
        replace_file(folder.path / JOB_NOTE, text.encode() + b"\n")
    return ids


def new_submission(outputs: Path) -> Path:
    """A new folder for this submission, hidden from run listings."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    folder = outputs.absolute() / ".slurm" / name
    folder.mkdir(parents=True)
    return folder


@contextmanager
def rolled_back_on_refusal(folders: Sequence[RunFolder], submission: Path) -> Iterator[list[RunFolder]]:
    """Remove what was written for a submission if SLURM refuses it. Folders that the caller adds to the yielded list
    are kept: they are submitted."""
    before = {folder: _record(folder) for folder in folders}
    settled: list[RunFolder] = []
    try:
        yield settled
    except ConfigError:
        for folder in (folder for folder in folders if folder not in settled):
            record = before[folder]
            if record is None:
                shutil.rmtree(folder.path, ignore_errors=True)
                _remove_empty(folder.path.parent)
            elif record:
                replace_file(folder.record_path, record)
        if not settled:
            shutil.rmtree(submission, ignore_errors=True)
            _remove_empty(submission.parent)
        raise


def _record(folder: RunFolder) -> bytes | None:
    """The bytes of run.json; None if the folder is empty."""
    if folder.record_path.exists():
        return folder.record_path.read_bytes()
    return b"" if folder.path.is_dir() and any(folder.path.iterdir()) else None


def _remove_empty(*paths: Path) -> None:
    for path in paths:
        try:
            path.rmdir()
        except OSError:
            return


def write_runs(folder: Path, runs: Sequence[RunFolder], part: int) -> Path:
    """List the run folders of an array, in the order of its tasks."""
    path = folder / (RUNS if part == 0 else f"runs-{part}.txt")
    path.write_text("".join(f"{os.path.abspath(run)}\n" for run in runs))
    return path
