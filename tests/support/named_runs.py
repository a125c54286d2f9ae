"""Runs of composed configurations, as training leaves their records."""

from pathlib import Path

from omegaconf import DictConfig

from launcher.config.command import command_record
from launcher.config.identity import fix_name
from launcher.config.plain import to_plain
from launcher.config.resolve import stored
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from support.composition import composed


def config_of(outputs: Path, *overrides: str) -> DictConfig:
    config = composed(["model=mlp", "data=digits", f"paths.outputs={outputs}", *overrides])
    fix_name(config)
    return config


def begin(config: DictConfig) -> RunRecord:
    record = RunRecord(RunFolder(config.run.dir).create())
    choices = to_plain(config.hydra.runtime.choices)
    record.begin_attempt(
        start_step=0,
        max_steps=1,
        world_size=1,
        strategy="none",
        command=command_record(stored(config), {"runtime": {"choices": choices}}),
    )
    return record
