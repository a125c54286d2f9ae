"""A shared start: a new run begins with the steps that it has in common with a run on disk."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from launcher.checkpoint.drift import environment_changes
from launcher.checkpoint.durable_files import write_file
from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, UnsupportedCheckpoint, verify
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import weights_digest
from launcher.config.schema.matters_from import Node
from launcher.config.tree import nest
from launcher.hooks.base import TrainerView
from launcher.optim.common_steps import common_steps, comparable
from launcher.process.files import fsync_file, replace_file
from launcher.rundir.folder import RunFolder, checkpoint_steps, run_name, step_name
from launcher.rundir.history import read_rows
from launcher.rundir.provenance import MACHINE, describe_machine
from launcher.rundir.record_format import AttemptData, RecordData, SharedData
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.rundir.step_lines import step_of

ATTEMPT = re.compile(rb'"attempt": ?(-?\d+)')
LINES = ("metrics.jsonl", "media.jsonl")
CHECKPOINTING = "launcher.hooks.checkpointing.CheckpointingHook"


class Unusable(Exception):
    """A run would not have saved another run's checkpoint. The message is one sentence."""


@dataclass(frozen=True)
class Source:
    """A checkpoint of another run."""

    run: RunFolder
    record: RecordData
    identity: Node
    step: int

    def has_trained(self, attempt: AttemptData) -> bool:
        """Return whether an attempt has trained any of the steps.

        The first one stands for the steps that its run shares, which it has compared with its own.
        """
        shared, start = self.record.get("shared"), attempt["start_step"]
        is_first = shared is not None and start <= shared["step"]
        return (start < self.step or is_first) and attempt.get("end_step") != start

    def path(self, step: int) -> Path:
        return self.run.checkpoints / step_name(step)

    def tidy(self) -> None:
        """Delete the checkpoints that a completed run has kept for runs which have started."""
        leaves = nest(self.record["config"])["run"].get("leaves") or {}
        if not leaves or RunOnDisk.read(self.run).record.get("state") != "completed":
            return
        nodes = (node for node in self.identity["hooks"].values() if node)
        settings: Node = next((node for node in nodes if node["_target_"] == CHECKPOINTING), {})
        keys = ("keep_previous", "keep_interval", "keep_steps")
        options = {key: settings[key] for key in keys if settings.get(key)}
        waiting = steps_to_await(
            self.run.path.parent, {int(step): ids for step, ids in leaves.items()}
        )
        store = CheckpointStore(self.run.checkpoints, names=RunOnDisk.read(self.run).names)
        store.tidy(max(store.steps()), Retention(**options, awaited=lambda: waiting))


class SharedStart:
    """Finds the checkpoint that a new run starts from, and makes its history the run's own.

    Args:
        identity: this run's identity (see `comparable`).
        texts: the small files of this run's checkpoints, with its configuration, code and machine.
    """

    def __init__(self, identity: Node, texts: Mapping[str, str]):
        self.identity, self.texts = identity, texts
        self.source: Source | None = None
        self._best_step = 0

    def find(self, trainer: TrainerView) -> Path | None:
        """Return the latest checkpoint that this run would have reached bitwise identical."""
        if trainer.workspace is None or not trainer.strategy.has_plain_tensors:
            return None
        reported: set[Path] = set()
        sources = self._sources(trainer.workspace)
        for source in sorted(sources, key=lambda one: (-one.step, one.run.path)):
            try:
                self._best_step = self._find_best(trainer, source)
                self.source = source
                return source.path(source.step)
            except (Unusable, CorruptCheckpoint, UnsupportedCheckpoint, OSError) as error:
                problem = str(error).rstrip(".")
            if source.run.path not in reported:
                reported.add(source.run.path)
                name = source.run.path.name
                trainer.logger.info("Shares no step %d with %s: %s.", source.step, name, problem)
        return None

    def _sources(self, workspace: Path) -> Iterator[Source]:
        """Yield the checkpoints of common steps of the runs of this name, each record read once."""
        for run in map(RunFolder, workspace.parent.iterdir()):
            stored = RunOnDisk.read(run)
            if stored.identity is None or run.path.name == workspace.name:
                continue
            record = stored.record
            other = comparable(stored.identity, nest(record["config"]), record.get("max_steps"))
            lines = cache(partial(_lines, run.metrics_path))
            if common := common_steps(self.identity, other, lines):
                for step in checkpoint_steps(run.checkpoints):
                    if step <= common:
                        yield Source(run, record, other, step)

    def _find_best(self, trainer: TrainerView, source: Source) -> int:
        """Return the step of a source's best checkpoint, if this run would have saved the same."""
        path, batch_size = source.path(source.step), self.identity["data"]["batch_size"]
        manifest = Manifest.read(path)
        if manifest.checkpoint_format != trainer.strategy.checkpoint_format:
            raise Unusable(f"it is of strategy {manifest.strategy}.")
        if manifest.samples not in (None, source.step * batch_size):
            raise Unusable("some of its steps used further samples.")
        for attempt in source.record.get("attempts", []):
            if source.has_trained(attempt):
                self._check_rounding(trainer, attempt)
        if changes := environment_changes(path, self.texts):
            raise Unusable(changes[0])
        # Reading the weights twice is better than a start that fails half way.
        verify(path)
        hooks = json.loads((path / "rank-00000.json").read_bytes())["hooks"]
        notes = hooks.get("CheckpointingHook", {}).get("checkpointing", {})
        best = notes.get("best") or {}
        step: int = source.step if best.get("value") is None else best["step"]
        if step != source.step:
            verify(source.path(step))
        return step

    def _check_rounding(self, trainer: TrainerView, attempt: AttemptData) -> None:
        """Check that the steps of an attempt have the same last bits as here."""
        here = describe_machine(yaml.safe_load(self.texts[MACHINE]))
        if (machine := attempt.get("machine")) != here:
            raise Unusable(f"it was trained on another machine: {machine}, and here is {here}.")
        plan, ranks = trainer.strategy.plan, trainer.strategy.ranks
        there = attempt.get("world_size"), attempt.get("micro_batch_size")
        if plan.lanes is None and there != (ranks.world_size, plan.micro_batch_size):
            raise Unusable(
                f"it was trained on {there[0]} ranks with {there[1]} samples a pass, which differs"
                " by rounding without trainer.lanes."
            )

    def data(self) -> SharedData | None:
        """Return what `run.json` records."""
        if self.source is None:
            return None
        digest = weights_digest(self.source.path(self.source.step))
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
                replace_file(workspace / name, b"".join(_copy_lines(file.read_bytes(), step)))
        for folder in source.run.path.glob("images/*"):
            if folder.name.isdecimal() and int(folder.name) <= step:
                shutil.copytree(folder, workspace / "images" / folder.name, dirs_exist_ok=True)
        for at in sorted({self._best_step, step}):
            self._link(source.path(at), workspace, store)
        store.relink()
        source.tidy()

    def _link(self, path: Path, workspace: Path, store: CheckpointStore) -> None:
        """Make a checkpoint this run's own: what is the same is a link."""
        manifest = Manifest.read(path)
        folder = store.begin(manifest.step)
        files = [write_file(folder / "config.yaml", [self.texts["config.yaml"].encode()])]
        for entry in manifest.files:
            if entry.name == files[0].name:
                continue
            files.append(entry)
            target = folder / entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path / entry.name, target)
            # The file system has no links, or the checkpoints are on another one.
            except OSError:
                shutil.copyfile(path / entry.name, target)
                fsync_file(target)
        files.sort(key=lambda entry: entry.name)
        store.commit(folder, replace(manifest, run=run_name(workspace), files=files))


def _copy_lines(content: bytes, step: int) -> list[bytes]:
    """Return the lines before a step, whose own lines are part of the checkpoint.

    Their attempts are numbered ..., -1, 0, since the run itself begins with attempt 1.
    """
    lines = content.splitlines(keepends=True)
    earlier = [line for line in lines if (at := step_of(line)) is not None and at < step]
    numbers = [int(match[1]) for line in earlier if (match := ATTEMPT.search(line))]
    newest = max(numbers, default=0)
    return [
        ATTEMPT.sub(lambda match: b'"attempt":%d' % (int(match[1]) - newest), line, count=1)
        for line in earlier
    ]


def steps_to_await(folder: Path, leaves: Mapping[int, Sequence[str]]) -> list[int]:
    """Return the steps that a run in the folder of a name will start from, and has not reached."""
    reached = {
        one: max(checkpoint_steps(RunFolder(folder / one).checkpoints), default=0)
        for ids in leaves.values()
        for one in ids
    }
    return [step for step, ids in leaves.items() if any(reached[one] < step for one in ids)]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [line for line in read_rows(path) if "step" in line]
