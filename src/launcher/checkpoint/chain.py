"""The chain of a run's checkpoints: `chain.jsonl` has a line for each, with its digests.

A line has the digest of the line before. So the last line stands for all, and a claim about a run
commits to its whole course by one digest. It is a commitment, not a proof: whoever trains may write
any chain.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.checkpoint.manifest import Manifest
from launcher.process.files import read_file, replace_file
from launcher.rundir.folder import RunFolder, checkpoint_steps, step_name
from launcher.rundir.lock import LockLost
from launcher.rundir.step_lines import drop_lines_after, step_of

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
            is_next = link.line == line and _follows(link, links[-1] if links else None)
        except (ValueError, TypeError, RecursionError):
            is_next = False
        if not is_next:
            raise BrokenChain(f"{path.name}: line {number} does not follow from the one before")
        links.append(link)
    return links


def _follows(link: Link, former: Link | None) -> bool:
    if former is None:
        return link.step >= 0
    return link.before == former.digest and link.step > former.step


# ------------------------------------------------------------------------------------------ writing
def append(
    path: Path, checkpoint: Path, check: Callable[[], None], hashed: Mapping[str, str]
) -> None:
    """Append the line of a checkpoint, in place of lines of its step and of later ones.

    The file is replaced, so a kill at any moment leaves the old chain or the new one.

    Args:
        path: the chain.
        checkpoint: the folder of a checkpoint.
        check: raises if this process must not write any more.
        hashed: see `digests_of`.
    """
    from launcher.checkpoint.digests import digests_of  # late: torch

    manifest = Manifest.read(checkpoint)
    lines = _lines_to(path, manifest.step - 1)
    before = hashlib.sha256(lines[-1]).hexdigest() if lines else ""
    numbers, rest = digests_of(checkpoint, hashed)
    link = Link(manifest.step, manifest.run, numbers, rest, before)
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
        self.path = run.chain_path
        self.root = root
        self.check = check
        self._threads: dict[int, threading.Thread] = {}
        """Threads that write lines, by the last step of each. One waits for those before it."""

    def begin(self, step: int, parent: Path | None) -> None:
        """Cut the chain at the step of a start, and add the checkpoints that have no line.

        Args:
            step: where training starts.
            parent: the checkpoint of another run that this one was forked from, if it was.
        """
        drop_lines_after(self.path, step)
        last = max((int(step_of(line) or 0) for line in _lines_to(self.path, step)), default=-1)
        missing = []
        if parent is not None and last < step:
            lines = _lines_to(parent.parents[1] / self.path.name, step)
            if lines and step_of(lines[-1]) == step:
                replace_file(self.path, lines[-1])
            else:
                missing = [parent]
            last = step
        saved = [at for at in checkpoint_steps(self.root) if last < at <= step]
        missing += [self.root / step_name(at) for at in saved]
        if missing:
            self._start(step, missing, {})

    def add(self, step: int, hashed: Mapping[str, str]) -> None:
        """Add the line of a checkpoint that was committed; for `hashed`, see `digests_of`."""
        self._start(step, [self.root / step_name(step)], hashed)

    def _start(self, step: int, checkpoints: list[Path], hashed: Mapping[str, str]) -> None:
        # A step that is saved again comes last.
        running = [(at, thread) for at, thread in self._threads.items() if thread.is_alive()]
        self._threads = {at: thread for at, thread in running if at != step}
        former = [thread for _, thread in running]
        # The thread is a daemon, since a hanging disk must not keep the process from exiting.
        self._threads[step] = threading.Thread(
            target=self._write, args=(former, checkpoints, hashed), name="chain", daemon=True
        )
        self._threads[step].start()

    def _write(
        self, former: list[threading.Thread], checkpoints: list[Path], hashed: Mapping[str, str]
    ) -> None:
        for thread in former:
            thread.join()
        for checkpoint in checkpoints:
            try:
                append(self.path, checkpoint, self.check, hashed)
            # The lock has told whom it concerns. After a signal, the run ends before the line.
            except LockLost:
                return
            # The line of a claim must not end a training, whatever the error is.
            except Exception as error:
                logger.warning(
                    "%s has no line for %s (%s); the next start adds it.",
                    self.path.name,
                    checkpoint.name,
                    error,
                )

    def wait_for(self, step: int, advanced: Callable[[], None]) -> None:
        """Wait for the line of a checkpoint that will be deleted."""
        for at, thread in self._threads.items():
            while thread.is_alive():
                advanced()
                thread.join(POLL)
            if at >= step:
                break

    def finish(self) -> None:
        """Wait until each checkpoint has its line."""
        for thread in self._threads.values():
            thread.join()
