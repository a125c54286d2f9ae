"""Runs of composed configurations, as training leaves their records."""

from pathlib import Path

from launcher.config.identity.record_entry import command_record
from launcher.config.run_config import RunConfig
from launcher.rundir.record import RunRecord
from support.composition import run_of


def config_of(outputs: Path, *overrides: str) -> RunConfig:
    return run_of(["model=mlp", "data=digits", f"paths.outputs={outputs}", *overrides])


def begin(config: RunConfig) -> RunRecord:
    record = RunRecord(config.folder.create())
    record.begin_attempt(
        start_step=0,
        max_steps=1,
        world_size=1,
        strategy="none",
        command=command_record(config.stored, {"runtime": {"choices": config.choices}}),
    )
    return record
