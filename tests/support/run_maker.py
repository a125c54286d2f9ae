"""Run folders as training leaves them: record, lock, Hydra's files."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launcher.config.identity.record_entry import command_record
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import Holder
from launcher.rundir.record import RunRecord


def begin_run(folder: RunFolder, step: int = 0, max_steps: int = 10, **options: Any) -> RunRecord:
    """Begin an attempt; options as for the record."""
    record = RunRecord(folder, **options)
    record.begin_attempt(start_step=step, max_steps=max_steps, world_size=1, strategy="none")
    return record


def run_maker(outputs: Path) -> Callable[..., RunFolder]:
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
