"""A shared start: a new run begins with the steps that it has in common with a run on disk."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from launcher.checkpoint.changes import environment_changes
from launcher.checkpoint.files import write_file
from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, UnsupportedCheckpoint, verify
from launcher.checkpoint.store import CheckpointStore, noted
from launcher.checkpoint.stored import weights_digest
from launcher.config.matters_from import Node
from launcher.config.tree import nested
from launcher.hooks.base import TrainerView
from launcher.optim.common_steps import common_steps, comparable
from launcher.rundir.files import fsync_file, replace_file
from launcher.rundir.folder import RunFolder, checkpoint_steps, run_name, step_name
from launcher.rundir.provenance import MACHINE, described
from launcher.rundir.record_format import AttemptData, RecordData, SharedData
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.rundir.step_lines import step_of

ATTEMPT = re.compile(rb'"attempt": ?(-?\d+)')
LINES = ("metrics.jsonl", "media.jsonl")


@dataclass(frozen=True)
class Source:
    """A checkpoint of another run."""

    run: RunFolder
    record: RecordData
    step: int

    @property
    def path(self) -> Path:
        return self.run.checkpoints / step_name(self.step)

    def has_trained(self, attempt: AttemptData) -> bool:
        """Return whether an attempt has trained any of the steps.

        The first one stands for the steps that its run shares, which it has compared with its own.
        """
        shared, start = self.record.get("shared"), attempt["start_step"]
        is_first = shared is not None and start <= shared["step"]
        return (start < self.step or is_first) and attempt.get("end_step") != start

    @property
    def paths(self) -> list[Path]:
        """The checkpoint that was the best one at the step, if any, and the checkpoint itself."""
        best: Any = (noted(self.path) or {}).get("best") or {}
        step = self.step if best.get("value") is None else best["step"]
        return list(dict.fromkeys((self.run.checkpoints / step_name(step), self.path)))


class SharedStart:
    """Finds the checkpoint that a new run starts from, and makes its history the run's own.

    Args:
        identity: this run's identity (see `comparable`).
        texts: the small files of this run's checkpoints, with its configuration, code and machine.
    """

    def __init__(self, identity: Node, texts: Mapping[str, str]):
        self.identity, self.texts = identity, texts
        self.source: Source | None = None

    def find(self, trainer: TrainerView) -> Path | None:
        """Return the latest checkpoint that this run would have reached bitwise identical."""
        if trainer.workspace is None or not trainer.strategy.has_plain_tensors:
            return None
        reported: set[Path] = set()
        sources = self._sources(trainer.workspace)
        for source in sorted(sources, key=lambda one: (-one.step, one.run.path)):
            problem = self._problem(trainer, source)
            if problem is None:
                self.source = source
                return source.path
            if source.run.path not in reported:
                reported.add(source.run.path)
                name = source.run.path.name
                trainer.logger.info("Shares no step %d with %s: %s", source.step, name, problem)
        return None

    def _sources(self, workspace: Path) -> Iterator[Source]:
        """Yield the checkpoints of common steps of the runs of this name, each record read once."""
        for run in map(RunFolder, workspace.parent.iterdir()):
            stored = RunOnDisk.read(run)
            if stored.identity is None or run.path.name == workspace.name:
                continue
            record = stored.record
            other = comparable(stored.identity, nested(record["config"]), record.get("max_steps"))
            if common := common_steps(self.identity, other):
                for step in checkpoint_steps(run.checkpoints):
                    if step <= common:
                        yield Source(run, record, step)

    def _problem(self, trainer: TrainerView, source: Source) -> str | None:
        """Return why another run's checkpoint is not what this run would have saved, or None."""
        batch_size = self.identity["data"]["batch_size"]
        try:
            manifest = Manifest.read(source.path)
            if manifest.checkpoint_format != trainer.strategy.checkpoint_format:
                return f"it is of strategy {manifest.strategy}."
            if manifest.samples not in (None, source.step * batch_size):
                return "some of its steps used further samples."
            for attempt in source.record.get("attempts", []):
                if source.has_trained(attempt) and (problem := self._rounding(trainer, attempt)):
                    return problem
            if changes := environment_changes(source.path, self.texts):
                return changes[0]
            # Reading the weights twice is better than a start that fails half way.
            for path in source.paths:
                verify(path)
        except (CorruptCheckpoint, UnsupportedCheckpoint, OSError) as error:
            return f"{error}."
        return None

    def _rounding(self, trainer: TrainerView, attempt: AttemptData) -> str | None:
        """Return why the steps of an attempt have other last bits than they have here, or None."""
        here = described(yaml.safe_load(self.texts[MACHINE]))
        if (machine := attempt.get("machine")) != here:
            return f"it was trained on another machine: {machine}, and here is {here}."
        plan, ranks = trainer.strategy.plan, trainer.strategy.ranks
        there = attempt.get("world_size"), attempt.get("micro_batch_size")
        if plan.lanes is None and there != (ranks.world_size, plan.micro_batch_size):
            return (
                f"it was trained on {there[0]} ranks with {there[1]} samples a pass, which differs"
                " by rounding without trainer.lanes."
            )
        return None

    def data(self) -> SharedData | None:
        """Return what `run.json` records."""
        if self.source is None:
            return None
        digest = weights_digest(self.source.path)
        return {"run": self.source.run.path.name, "step": self.source.step, "digest": digest}

    def take_over(self, workspace: Path, store: CheckpointStore) -> None:
        """Copy the logged lines, and link the checkpoints, into this run's folder.

        The best checkpoint comes first, so a kill between any two files leaves a run that resumes
        from an earlier common step, or shares again.
        """
        assert self.source is not None
        source, step = self.source, self.source.step
        for name in LINES:
            if (file := source.run.path / name).exists():
                replace_file(workspace / name, b"".join(_copied(file.read_bytes(), step)))
        for folder in source.run.path.glob("images/*"):
            if folder.name.isdecimal() and int(folder.name) <= step:
                shutil.copytree(folder, workspace / "images" / folder.name, dirs_exist_ok=True)
        for path in source.paths:
            self._link(path, workspace, store)
        store.relink()

    def _link(self, path: Path, workspace: Path, store: CheckpointStore) -> None:
        """Make a checkpoint this run's own: its files are links, but for the configuration."""
        manifest = Manifest.read(path)
        folder = store.begin(manifest.step)
        own = write_file(folder / "config.yaml", [self.texts["config.yaml"].encode()])
        others = [entry for entry in manifest.files if entry.name != own.name]
        for entry in others:
            target = folder / entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path / entry.name, target)
            # The file system has no links, or the checkpoints are on another one.
            except OSError:
                shutil.copyfile(path / entry.name, target)
                fsync_file(target)
        name, files = run_name(workspace), sorted([*others, own], key=lambda entry: entry.name)
        store.commit(folder, replace(manifest, run=name, files=files))


def _copied(content: bytes, step: int) -> list[bytes]:
    """Return the lines before a step, whose own lines are part of the checkpoint.

    Their attempts are numbered ..., -1, 0, since the run itself begins with attempt 1.
    """
    lines = content.splitlines(keepends=True)
    kept = [line for line in lines if (at := step_of(line)) is not None and at < step]
    numbers = [int(found[1]) for line in kept if (found := ATTEMPT.search(line))]
    newest = max(numbers, default=0)
    return [
        ATTEMPT.sub(lambda found: b'"attempt":%d' % (int(found[1]) - newest), line, count=1)
        for line in kept
    ]


def awaited(folder: Path, leaves: Mapping[int, Sequence[str]]) -> list[int]:
    """Return the steps from which a run in the folder of a name will start, and has not yet."""

    def has_started(run_id: str) -> bool:
        return bool(RunOnDisk.read(folder / run_id).attempts)

    return [step for step, ids in leaves.items() if not all(map(has_started, ids))]
