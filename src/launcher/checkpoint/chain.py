"""The chain of a run's checkpoints: `chain.jsonl` has a line for each, with its digests.

A line has the digest of the line before. So the last line stands for all, and a claim about a run
commits to its whole course by one digest. It is a commitment, not a proof: whoever trains may write
any chain.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from launcher.checkpoint.shards import as_bytes
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.process.files import read_file, replace_file
from launcher.rundir.folder import RunFolder, checkpoint_steps, step_name
from launcher.rundir.history import is_measured
from launcher.rundir.step_lines import drop_lines_after, step_of

ATTEMPT_SUFFIXES = ("max_steps", "stop_reason", "attempt")
"""Suffixes of the names of values that say how far to train, and do not change the numbers."""
POLL = 0.1
"""Seconds between two looks for a line that is awaited."""

logger = logging.getLogger("launcher")


class BrokenChain(ValueError):
    """A line of a chain is damaged, or does not follow from the line before."""


@dataclass(frozen=True)
class Link:
    """A line of `chain.jsonl`."""

    step: int
    run: str | None
    """`<name>/<id>` of the run that trained the step, which may be another one."""
    numbers: str
    """Digest of the weights, the optimizer's state, the counters and the position of the data."""
    rest: str
    """Digest of each rank's random state and of the states of hooks."""
    before: str
    """Digest of the line before; empty for the first."""

    @property
    def line(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.line).hexdigest()


def read_chain(path: Path) -> list[Link]:
    """Read a chain.

    Raises:
        BrokenChain: a line is damaged, or does not follow from the line before.
        OSError: there is none, or it cannot be read.
    """
    links: list[Link] = []
    for number, line in enumerate(read_file(path).splitlines(keepends=True), 1):
        try:
            link = Link(**json.loads(line))
            step = links[-1].step if links else -1
            is_next = link.before == (links[-1].digest if links else link.before)
            is_whole = link.line == line and link.step > step
        except (ValueError, TypeError, RecursionError):
            is_next = is_whole = False
        if not (is_next and is_whole):
            raise BrokenChain(f"{path.name}: line {number} does not follow from the one before")
        links.append(link)
    return links


# ------------------------------------------------------------------------------------------ digests
def digests_of(checkpoint: Path) -> tuple[str, str]:
    """Return the digests of a checkpoint's numbers and of its rest.

    The numbers are equal on any number of ranks, if the training is. Left out is what `runs replay`
    leaves out too: durations, and how far to train.
    """
    stored = StoredCheckpoint(checkpoint)
    numbers, rest = hashlib.sha256(), hashlib.sha256()
    for name in sorted(stored.names()):
        numbers.update(f"{name} {_tensor_text(stored.read(name))}\n".encode())
    _update(numbers, "state", stored.meta)
    for rank in range(stored.manifest.world_size):
        _update(rest, f"rank {rank}", stored.rank_state(rank))
    return numbers.hexdigest(), rest.hexdigest()


def is_left_out(name: str) -> bool:
    """Return whether a value of a checkpoint's state depends on the attempt, not the training."""
    return is_measured(name) or name.endswith(ATTEMPT_SUFFIXES)


def _tensor_text(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(as_bytes(tensor) if tensor.numel() else b"").hexdigest()
    return f"{tensor.dtype} {tuple(tensor.shape)} {digest}"


def _update(digest: Any, name: str, value: Any) -> None:
    for text in _leaves(name, value):
        digest.update(f"{text}\n".encode())


def _leaves(name: str, value: Any) -> Iterator[str]:
    """Yield a line for each leaf of a nested state."""
    if is_left_out(name):
        return
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from _leaves(f"{name}/{key}", value[key])
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(f"{name}/{number}", item)
    elif isinstance(value, set | frozenset):
        # The order of a set differs between processes.
        yield f"{name} {sorted(map(repr, value))}"
    elif isinstance(value, torch.Tensor):
        yield f"{name} {_tensor_text(value)}"
    elif isinstance(value, np.ndarray):
        yield f"{name} {_tensor_text(torch.from_numpy(value))}"
    else:
        yield f"{name} {value!r}"


# ------------------------------------------------------------------------------------------ writing
def link_of(checkpoint: Path, before: str) -> Link:
    """Return the line of a checkpoint after a line with this digest."""
    numbers, rest = digests_of(checkpoint)
    manifest = StoredCheckpoint(checkpoint).manifest
    return Link(manifest.step, manifest.run, numbers, rest, before)


def append(path: Path, checkpoint: Path, check: Callable[[], None]) -> None:
    """Append the line of a checkpoint, in place of lines of its step and of later ones.

    The file is replaced, so a kill at any moment leaves the old chain or the new one. `check`
    raises if this process must not write any more.
    """
    step = StoredCheckpoint(checkpoint).manifest.step
    lines = _lines_to(path, step - 1)
    link = link_of(checkpoint, hashlib.sha256(lines[-1]).hexdigest() if lines else "")
    check()
    replace_file(path, b"".join([*lines, link.line]))


def _lines_to(path: Path, step: float) -> list[bytes]:
    """Return the lines up to a step."""
    try:
        lines = read_file(path).splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [line for line in lines if (at := step_of(line)) is not None and at <= step]


def copy_lines(source: Path, target: Path, step: int) -> None:
    """Copy the lines of another run's chain up to a step, whose `run` says whose they are."""
    if lines := _lines_to(source, step):
        replace_file(target, b"".join(lines))


class ChainWriter:
    """Writes the chain of a run, in a thread that no save and no step waits for.

    Args:
        run: the folder of the run.
        root: the folder of its checkpoints.
        check: raises if this process must not write any more.
    """

    def __init__(self, run: RunFolder, root: Path, check: Callable[[], None]):
        self.path, self.root, self.check = run.chain_path, root, check
        self._waiting: list[Path] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, step: int, parent: Path | None) -> None:
        """Cut the chain at the step of a start, and add the checkpoints that have no line.

        Args:
            step: where training starts.
            parent: the checkpoint of another run that this one was forked from, if it was.
        """
        drop_lines_after(self.path, step)
        last = max((int(step_of(line) or 0) for line in _lines_to(self.path, step)), default=-1)
        if parent is not None and last < step:
            lines = _lines_to(parent.parents[1] / self.path.name, step)
            if lines and step_of(lines[-1]) == step:
                replace_file(self.path, lines[-1])
            else:
                self._add([parent])
            last = step
        self._add(
            self.root / step_name(saved) for saved in checkpoint_steps(self.root) if saved > last
        )

    def add(self, step: int) -> None:
        """Add a line for a checkpoint that was committed."""
        self._add([self.root / step_name(step)])

    def _add(self, checkpoints: Iterable[Path]) -> None:
        with self._lock:
            self._waiting += checkpoints
            if self._waiting and self._thread is None:
                # It is a daemon, since a hanging disk must not keep the process from exiting.
                self._thread = threading.Thread(target=self._run, name="chain-writer", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (checkpoint := self._next()) is not None:
            try:
                append(self.path, checkpoint, self.check)
            # An error of any kind: others wait for this thread to empty its list.
            except Exception as error:
                logger.warning(
                    "%s has no line for %s (%s); the next start adds it.",
                    self.path.name,
                    checkpoint.name,
                    error,
                )
            with self._lock:
                self._waiting.pop(0)

    def _next(self) -> Path | None:
        with self._lock:
            if not self._waiting:
                self._thread = None
                return None
            return self._waiting[0]

    def wait_for(self, step: int, advanced: Callable[[], None] = lambda: None) -> None:
        """Wait for the line of a checkpoint that will be deleted."""
        while self._has(self.root / step_name(step)) and (thread := self._thread) is not None:
            advanced()
            thread.join(POLL)

    def _has(self, checkpoint: Path) -> bool:
        with self._lock:
            return checkpoint in self._waiting

    def finish(self) -> None:
        """Wait until each checkpoint has its line."""
        if (thread := self._thread) is not None:
            thread.join()
