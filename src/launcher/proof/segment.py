"""The steps of a run between two of its checkpoints, trained again and compared."""

import errno
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from launcher.checkpoint.drift import read_sources
from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, UnsupportedCheckpoint
from launcher.config.identity.course import changes_between
from launcher.config.identity.difference import Differences, describe, diff, in_a_line
from launcher.config.trust import read_config
from launcher.errors import ConfigError
from launcher.proof.scratch_run import ScratchRun
from launcher.rundir.folder import checkpoint_steps, step_name
from launcher.rundir.imported_sources import source_changes
from launcher.rundir.provenance import MACHINE
from launcher.runs.stored_run import StoredRun

if TYPE_CHECKING:
    from launcher.proof.diff import Diff

REPLACED_NODES = ("tracker", "dispatch", "job")
"""Nodes that a scratch run has of its own."""
GIT = "git"
"""Beginning of the circumstances that explain nothing alone: the imported sources are compared."""
NOT_A_STATE = (
    "No state is missing after a resume. The training does not repeat, files of the run were"
    " changed, or it was trained by other code than it has recorded."
)


@dataclass
class Replay:
    run: str
    start: int
    end: int
    diff: "Diff"
    circumstances: list[str] = field(default_factory=list)
    """Other differences: code, versions, processor."""
    causes: list[str] = field(default_factory=list)
    """Lines about the cause from further trainings, unless a circumstance explains it."""

    @property
    def is_equal(self) -> bool:
        return self.diff.is_equal


def replay(run: StoredRun, start: int, end: int, scratch: Path | None, trust: bool) -> Replay:
    """Train a segment of a run again, and compare it with the run's data."""
    _check_configuration(run, start, end)
    try:
        with tempfile.TemporaryDirectory(prefix=".launcher-replay-", dir=scratch) as root:
            segment = Segment(run, start, end, Path(root), trust)
            return compare(segment, segment.train("replay", start))
    except (CorruptCheckpoint, UnsupportedCheckpoint) as error:
        raise ConfigError(f"{run.label}: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"{run.label}: steps {start} to {end} cannot be replayed ({reason_of(error)}); use"
            " --scratch=DIR for another folder."
        ) from error


def choose(segments: Sequence[tuple[int, int]], count: int, word: str) -> list[tuple[int, int]]:
    """Choose segments by a word. Nobody who does not know it can foresee them."""
    return sorted(random.Random(word).sample(segments, min(count, len(segments))))


def changes_in(run: StoredRun, start: int, end: int) -> Differences:
    """Return the keys whose values have changed while a segment was trained."""
    return changes_between(run.record, start, end, run.identity_exclude)


def _check_configuration(run: StoredRun, start: int, end: int) -> None:
    """Check that the steps of a segment were trained with one configuration."""
    changes = changes_in(run, start, end)
    if changes:
        raise ConfigError(
            f"{run.label}: steps {start} to {end} were trained with several configurations"
            f" ({in_a_line(changes)}), which a replay cannot repeat; choose others with --from and"
            " --to."
        )


class Segment:
    """The steps of a run between two checkpoints, under the configuration of the second."""

    def __init__(
        self,
        run: StoredRun,
        start: int,
        end: int,
        root: Path,
        trust: bool,
        ranks: int | None = None,
    ):
        from omegaconf import OmegaConf

        self.run = run
        self.start = start
        self.end = end
        self.root = root
        self.checkpoint = run.folder.checkpoints / step_name(end)
        self.ranks = ranks or Manifest.read(self.checkpoint).world_size
        file = self.checkpoint / "config.yaml"
        self.config: Any = read_config(file, trust, left_out=REPLACED_NODES)
        run.folder.check_folders()
        try:
            hydra: Any = OmegaConf.load(run.folder.hydra / "hydra.yaml")
            self.hydra: Any = OmegaConf.to_container(hydra.hydra)
        except (OSError, ValueError, AttributeError):
            self.hydra = None

    @property
    def label(self) -> str:
        return f"{self.run.label}, steps {self.start} to {self.end}"

    def train(self, name: str, first: int, is_traced: bool = False) -> ScratchRun:
        """Train from the checkpoint of step `first` to the end of the segment.

        A traced training also saves at the start of the segment.
        """
        label = f"{self.run.label}, steps {first} to {self.end}"
        scratch = self._copy(name, label, is_traced)
        scratch.begin_from(self.run.folder, first)
        scratch.train(self.end)
        return scratch

    def evaluate(self, name: str, split: str) -> dict[str, Any]:
        """Evaluate the checkpoint at the end of the segment; return its line of metrics."""
        scratch = self._copy(name, f"{self.run.label}, step {self.end}", False)
        scratch.begin_from(self.run.folder, self.end)
        return scratch.evaluate(self.end, split)

    def _copy(self, name: str, label: str, is_traced: bool) -> ScratchRun:
        saved = self.start if is_traced else None
        return ScratchRun(
            self.root / name, self.config, self.hydra, self.ranks, label, is_traced, saved
        )


def compare(segment: Segment, copy: ScratchRun) -> Replay:
    """Compare a training of the segment with the run; if they differ, add what may explain it."""
    from launcher.proof.diff import diff  # late: torch

    run = segment.run
    start = segment.start
    end = segment.end
    difference = diff(run.folder, copy.folder, start, end, ("the run", "the replay"))
    result = Replay(run.label, start, end, difference)
    if not difference.is_equal:
        after = copy.folder.checkpoints / step_name(end)
        if after.is_dir():
            result.circumstances = circumstances(segment.checkpoint, after)
        if all(line.startswith(GIT) for line in result.circumstances):
            result.causes = (causes(segment) if start else []) or [NOT_A_STATE]
    return result


def causes(segment: Segment) -> list[str]:
    """Train the segment once more, and once without the resume at its start, and compare these."""
    print(
        f"{segment.label}: different; training twice more to find the cause.",
        file=sys.stderr,
        flush=True,
    )
    from launcher.proof.diff import TraceComparison  # late: torch

    start = segment.start
    steps = checkpoint_steps(segment.run.folder.checkpoints)
    before = max((step for step in steps if step < start), default=0)
    try:
        straight = segment.train("straight", before, is_traced=True)
        resumed = segment.train("resumed", start, is_traced=True)
        return list(TraceComparison(straight, resumed, start, since=start).causes())
    except ConfigError as error:
        return [f"not found: {' '.join(error.messages)}"]
    except OSError as error:
        return [f"not found: {reason_of(error)}."]


def reason_of(error: OSError) -> str:
    """Return the reason of an error in a few words; copying a folder raises a list of them."""
    if isinstance(error, shutil.Error):
        if any(f"[Errno {errno.ENOSPC}]" in str(reason) for *_, reason in error.args[0]):
            return os.strerror(errno.ENOSPC)
        return str(error.args[0][0][-1])
    return str(error.strerror or error)


def circumstances(before: Path, after: Path) -> list[str]:
    """List what is recorded as different at two checkpoints: code, versions and machine."""
    edited = source_changes(read_sources(before), read_sources(after))
    for file in ("code.yaml", MACHINE):
        edited += describe(diff(load_yaml(before / file), load_yaml(after / file)))
    return edited


def load_yaml(file: Path) -> dict[str, object]:
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
