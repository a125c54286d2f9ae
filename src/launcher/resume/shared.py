"""A shared start: a new run begins with the steps that it has in common with a run on disk."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from launcher.checkpoint.chain import copy_lines
from launcher.checkpoint.drift import environment_changes
from launcher.checkpoint.durable_files import write_file, write_json
from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, UnsupportedCheckpoint, verify
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint, weights_digest
from launcher.config.identity.difference import Differences, in_a_line, is_within
from launcher.config.schema.checks import checkpointing
from launcher.config.schema.signature import defined_as
from launcher.config.tree import Node, nest
from launcher.process.files import fsync_file, read_file, replace_file
from launcher.resume.common_steps import common_steps, comparable, obstacles
from launcher.resume.trainer import Resumable, name_by_class
from launcher.rundir.folder import (
    RunFolder,
    checkpoint_steps,
    image_folders,
    run_name,
    step_name,
)
from launcher.rundir.history import read_rows
from launcher.rundir.provenance import MACHINE, describe_machine
from launcher.rundir.record_format import AttemptData, RecordData, SharedData
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.rundir.step_lines import step_of
from launcher.rundir.training_history import Settings, settings_of

ATTEMPT = re.compile(rb'"attempt": ?(-?\d+)')
LINES = ("metrics.jsonl", "media.jsonl")
UNEXPECTED = ("strategy", "hooks", "trainer.max_steps", "trainer.max_epochs", "data.num_workers")
"""Keys that matter from the first step on although a run's id or its numbers may not show it."""

States = Mapping[str, dict[str, Any]]
"""States of hooks, by the names of these."""


class Unusable(Exception):
    """A run would not have saved another run's checkpoint. The message is one sentence."""


@dataclass(frozen=True)
class Part:
    """The steps of an attempt."""

    attempt: AttemptData
    settings: Settings | None
    """The settings that trained them, or None if they are not recorded."""
    common: int
    """The first steps that a run with these settings has in common with this one."""
    is_first: bool

    def last_of(self, step: int) -> int:
        """Return the last of the steps up to `step` that the attempt has trained, or 0 for none.

        The first attempt stands for the steps before its own too: its run has shared them, and has
        compared them with its own.
        """
        start = self.attempt["start_step"]
        end = self.attempt.get("end_step")
        if not self.is_first and (start >= step or end == start):
            return 0
        return step if end is None else min(step, end)


@dataclass(frozen=True)
class Source:
    """A checkpoint of another run."""

    run: RunFolder
    record: RecordData
    parts: Sequence[Part]
    lines: Callable[[], list[Node]]
    step: int
    states: Mapping[int, States] = field(default_factory=dict)
    """By step, of it and of the best one before it, the states that replace the stored ones."""

    @property
    def trained(self) -> list[Part]:
        """The attempts that have trained any of the steps."""
        return [part for part in self.parts if part.last_of(self.step)]

    def path(self, step: int) -> Path:
        return self.run.checkpoints / step_name(step)

    def tidy(self) -> None:
        """Delete the checkpoints that a completed run has kept for runs which have started."""
        leaves = nest(self.record["config"])["run"].get("leaves") or {}
        if not leaves:
            return
        stored = RunOnDisk.read(self.run)
        if stored.recorded_state != "completed":
            return
        newest = self.parts[-1].settings or {}
        settings = checkpointing(newest.get("hooks")) or {}
        keys = ("keep_previous", "keep_interval", "keep_steps")
        options = {key: settings[key] for key in keys if settings.get(key)}
        waiting = steps_to_await(
            self.run.path.parent, {int(step): ids for step, ids in leaves.items()}
        )
        store = CheckpointStore(self.run.checkpoints, names=stored.names)
        store.tidy(max(store.steps()), Retention(**options, awaited=lambda: waiting))


class SharedStart:
    """Finds the checkpoint that a new run starts from, and makes its history the run's own.

    Args:
        settings: this run's settings (see `comparable`).
        texts: the small files of this run's checkpoints, with its configuration, code and machine.
    """

    def __init__(self, settings: Settings, texts: Mapping[str, str]):
        self.settings = settings
        self.texts = texts
        self.weights: str | None = None
        """The digest of the weights of `run.init_from`, once they are loaded."""
        self.source: Source | None = None
        self._unlike: list[tuple[str, Differences]] = []

    def find(self, trainer: Resumable) -> tuple[Path, States] | None:
        """Return the latest checkpoint that this run would have reached bitwise identical.

        Returns:
            its folder, and the states of hooks that replace the stored ones.
        """
        if trainer.workspace is None or not trainer.strategy.has_plain_tensors:
            return None
        reported: set[Path] = set()
        sources = sorted(
            self._sources(trainer.workspace), key=lambda one: (-one.step, one.run.path)
        )
        for source in sources:
            if trainer.pause_at is not None and source.step > trainer.pause_at:
                continue
            try:
                self.source = self._usable(trainer, source)
                return source.path(source.step), self.source.states[source.step]
            except (Unusable, CorruptCheckpoint, UnsupportedCheckpoint, OSError) as error:
                problem = str(error).rstrip(".")
            if source.run.path not in reported:
                reported.add(source.run.path)
                name = source.run.path.name
                trainer.logger.info("Shares no step %d with %s: %s.", source.step, name, problem)
        if not sources and self._unlike:
            name, changes = min(self._unlike, key=lambda run: (len(run[1]), run[0]))
            trainer.logger.info("Shares no step with %s: %s.", name, in_a_line(changes))
        return None

    def _sources(self, workspace: Path) -> Iterator[Source]:
        """Yield the checkpoints of common steps of the runs of this name, each record read once."""
        for run in map(RunFolder, workspace.parent.iterdir()):
            steps = [] if run.path.name == workspace.name else checkpoint_steps(run.checkpoints)
            stored = RunOnDisk.read(run) if steps else None
            if stored is None or stored.identity is None:
                continue
            lines = cache(partial(_lines, run.metrics_path))
            parts = self._parts(stored, lines)
            for step in steps:
                if step <= max((part.common for part in parts if part.last_of(step)), default=0):
                    yield Source(run, stored.record, parts, lines, step)
            if parts and not any(part.common for part in parts):
                self._note_unlike(run.path.name, parts[-1].settings)

    def _parts(self, stored: RunOnDisk, lines: Callable[[], list[Node]]) -> list[Part]:
        parts = list[Part]()
        all_settings = settings_of(stored.attempts)
        named = dict[str, Any]()
        if None in all_settings:
            named = comparable(stored.identity or {}, nest(stored.settings), stored.max_steps)
        steps_of: dict[int, int] = {}
        for attempt, settings in zip(stored.attempts, all_settings, strict=True):
            if settings is None and attempt.get("end_step") == attempt["start_step"]:
                continue
            # An earlier version has recorded none. Its run is looked at, to say so.
            compared = named if settings is None else settings
            if id(compared) not in steps_of:
                steps_of[id(compared)] = common_steps(self.settings, compared, lines)
            parts.append(Part(attempt, settings, steps_of[id(compared)], not parts))
        return parts

    def _note_unlike(self, name: str, settings: Settings | None) -> None:
        """Note a run that differs only in keys of which a user may think that they do not count."""
        changes = obstacles(self.settings, settings or {}, 1)
        # A node of another class has other arguments, which need not be named.
        nodes = {key.removesuffix("._target_") for key in changes if key.endswith("._target_")}
        changes = {
            key: values
            for key, values in changes.items()
            if key.endswith("._target_") or not is_within(key, nodes)
        }
        if changes and all(is_within(key, UNEXPECTED) for key in changes):
            self._unlike.append((name, changes))

    def _usable(self, trainer: Resumable, source: Source) -> Source:
        """Return a source with its best checkpoint, if this run would have saved the same."""
        path = source.path(source.step)
        batch_size = self.settings["data"]["batch_size"]
        manifest = Manifest.read(path)
        if manifest.checkpoint_format != trainer.strategy.checkpoint_format:
            raise Unusable(f"it is of strategy {manifest.strategy}.")
        if manifest.samples not in (None, source.step * batch_size):
            raise Unusable("some of its steps used further samples.")
        origin = source.record.get("forked_from")
        if origin is not None:
            raise Unusable(f"it started from a checkpoint of {origin['id']}.")
        for part in source.trained:
            self._check_settings(source, part)
            self._check_rounding(trainer, part.attempt)
        changes = environment_changes(path, self.texts)
        if changes:
            raise Unusable(changes[0])
        # Reading the weights twice is better than a start that fails half way.
        verify(path)
        states = self._states(trainer, source, source.step)
        notes = with_states(_read_hooks(path), states).values()
        saved = [note["checkpointing"].get("best") for note in notes if "checkpointing" in note]
        best: dict[str, Any] = next(filter(None, saved), {})
        step = source.step if best.get("value") is None else best["step"]
        if step < source.step:
            verify(source.path(step))
        before = self._states(trainer, source, step)
        return replace(source, states={step: before, source.step: states})

    def _check_settings(self, source: Source, part: Part) -> None:
        """Check that this run would have trained the steps of an attempt in the same way."""
        trained = part.attempt.get("trained")
        last = part.last_of(source.step)
        if part.settings is None or trained is None:
            raise Unusable(
                "an earlier version of Launcher trained it, and has not recorded with what."
            )
        first = 1 if part.is_first else part.attempt["start_step"] + 1
        which = f"its steps {first} to {last} were trained"
        if part.common < last:
            keys = in_a_line(obstacles(self.settings, part.settings, last, source.lines))
            raise Unusable(f"{which} with another configuration ({keys}).")
        begins = part.is_first or part.attempt["start_step"] == 0
        if begins and trained.get("weights") != self.weights:
            raise Unusable(f"{which} from other weights: run.init_from has changed.")
        changes = trained.get("changes")
        if changes:
            raise Unusable(f"{which} after a change: {changes[0]}")

    def _states(self, trainer: Resumable, source: Source, step: int) -> States:
        """Return the states at a step of hooks with other settings than in the other run."""
        path = source.path(step)
        lines = source.lines
        stored = _read_hooks(path)
        states = dict[str, Any]()
        for name, hook in name_by_class(trainer.hooks):
            target = f"{type(hook).__module__}.{type(hook).__qualname__}"
            here = _settings(self.settings, target)
            theirs = [_settings(part.settings or {}, target) for part in source.trained]
            is_other = any(settings != here for settings in theirs)
            if is_other and (state_after := getattr(hook, "state_after", None)):
                state = state_after(line for line in lines() if line["step"] <= step)
                if state != stored.get(name):
                    states[name] = state
        if states and StoredCheckpoint(path).meta["training_state"]["skipped_steps"]:
            raise Unusable("some of its updates were skipped.")
        return states

    def _check_rounding(self, trainer: Resumable, attempt: AttemptData) -> None:
        """Check that the steps of an attempt have the same last bits as here."""
        here = describe_machine(yaml.safe_load(self.texts[MACHINE]))
        machine = attempt.get("machine")
        if machine != here:
            raise Unusable(f"it was trained on another machine: {machine}, and here is {here}.")
        plan = trainer.strategy.plan
        ranks = trainer.strategy.ranks
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
        source = self.source
        step = self.source.step
        for name in LINES:
            if (file := source.run.path / name).exists():
                replace_file(workspace / name, b"".join(_copy_lines(read_file(file), step)))
        # The checkpoints of replaced states get lines of their own.
        changed = (at for at, states in source.states.items() if states)
        last = min([step, *(at - 1 for at in changed)])
        copy_lines(source.run.chain_path, RunFolder(workspace).chain_path, last)
        # A link in a folder of somebody else may lead to any folder of the reader.
        images = Path(os.path.realpath(source.run.path), "images")
        for at, folder in image_folders(source.run.path / "images"):
            if at <= step and Path(os.path.realpath(folder)).parent == images:
                shutil.copytree(folder, workspace / "images" / folder.name, dirs_exist_ok=True)
        for at, states in source.states.items():
            self._link(source.path(at), states, workspace, store)
        store.relink()
        source.tidy()

    def _link(self, path: Path, states: States, workspace: Path, store: CheckpointStore) -> None:
        """Make a checkpoint this run's own: what is the same is a link."""
        manifest = Manifest.read(path)
        folder = store.begin(manifest.step)
        files = [write_file(folder / "config.yaml", [self.texts["config.yaml"].encode()])]
        if states:
            for file in path.glob("rank-*.json"):
                tree = json.loads(read_file(file, follow=True))
                tree["hooks"] = with_states(tree["hooks"], states)
                files.append(write_json(folder / file.name, tree))
        own = [entry.name for entry in files]
        for entry in manifest.files:
            if entry.name in own:
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


def with_states(hooks: States, states: States) -> States:
    """Return the states of hooks in a checkpoint, some of them replaced."""
    return {**hooks, **{name: hooks.get(name, {}) | state for name, state in states.items()}}


def _read_hooks(path: Path) -> States:
    hooks: States = json.loads(read_file(path / "rank-00000.json", follow=True))["hooks"]
    return hooks


def _settings(settings: Node, target: str) -> list[Node]:
    """Return the settings of the hooks of a class."""
    hooks = settings.get("hooks") or {}
    return [node for node in hooks.values() if node and defined_as(node["_target_"]) == target]


def _lines(path: Path) -> list[Node]:
    return [line for line in read_rows(path) if "step" in line]
