"""Runs that were submitted, without SLURM."""

import json
from dataclasses import asdict
from typing import Any

from launcher.rundir.folder import RunFolder
from launcher.slurm.submission import FROZEN, Submission


def note_job(folder: RunFolder, *script_and_task: Any, job_id: str | None = None) -> None:
    """Note a run's job, as a submission does."""
    path = folder.path / FROZEN
    saved = json.loads(path.read_text()) if path.exists() else {"config": {}, "hydra": None}
    path.write_text(
        json.dumps(
            saved
            | {
                "job": asdict(Submission(*script_and_task, job_id=job_id)),
                "folder": str(folder.path),
            }
        )
    )
