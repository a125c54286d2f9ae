"""Save a checkpoint in a thread: each rank writes its files, then rank 0 commits."""

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launcher.checkpoint.digests import EarlyDigests
from launcher.checkpoint.durable_files import FileEntry, write_file, write_json
from launcher.checkpoint.host import HostBuffers
from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.shards import why_not_stored, write_tensors
from launcher.checkpoint.state_tree import encode
from launcher.checkpoint.store import CheckpointStore
from launcher.errors import ConfigError
from launcher.process.deadline import progress
from launcher.process.ranks import Ranks, maximum, world_size
from launcher.strategies.base import ShardSpec, Tensors
from launcher.strategies.sharded import is_sharded


class Abandoned(Exception):
    """Raised in a writer that was abandoned and wakes up again."""


class Writing:
    """A save in progress, as the training thread sees it."""

    def __init__(self) -> None:
        self.thread: threading.Thread
        self.error: BaseException | None = None
        self._given_up = False
        self._at = time.monotonic()
        self._waits = False

    def idle(self) -> float:
        """Return the seconds since this rank's writer last made progress."""
        return 0.0 if self._waits else time.monotonic() - self._at

    def advance(self) -> None:
        """Report progress, or raise `Abandoned`, since a later save may be complete."""
        if self._given_up:
            raise Abandoned("this save was abandoned")
        self._at = time.monotonic()

    def give_up(self, patience: float) -> None:
        self._given_up = True
        self.error = TimeoutError(
            f"its writer has hung for {patience:g} s and is abandoned; from now on training waits"
            " for each save"
        )

    @contextmanager
    def waiting_for_others(self) -> Iterator[None]:
        """Mark this rank as waiting, so that it does not count as hanging."""
        self._waits = True
        try:
            yield
        finally:
            # In this order: training's thread may look in between, and would see a hanging writer.
            self._at = time.monotonic()
            self._waits = False


def gather(value: object, group: object, writing: Writing) -> list[Any]:
    """Return every rank's value, in rank order, or raise `Abandoned`.

    A blocking collective cannot be interrupted, and crashes a process that exits during it. This
    one is polled, so that an abandoned writer can leave it.
    """
    mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    # The collective needs equal shapes, so the sizes come first.
    sizes = _gather(torch.tensor([mine.numel()]), group, writing)
    room = torch.zeros(int(max(sizes)), dtype=torch.uint8)
    room[: mine.numel()] = mine
    answers = _gather(room, group, writing)
    return [
        pickle.loads(row[: int(n)].numpy().tobytes()) for row, n in zip(answers, sizes, strict=True)
    ]


def _gather(tensor: torch.Tensor, group: Any, writing: Writing) -> list[torch.Tensor]:
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(rows, tensor, group=group, async_op=True)
    assert work is not None
    while not work.is_completed():
        writing.advance()
        time.sleep(0.002)
    work.wait()
    return rows


POLL = 1.0
"""Seconds between two checks of a writer while waiting for it."""
DONE = 0
ALIVE = 1
HUNG = 2


class SaveFailed(Exception):
    """A checkpoint could not be written, on any rank; the previous one is unchanged."""


@dataclass
class Payload:
    """State that one rank saves at a step boundary.

    Args:
        tensors: live tensors of this rank, by name. `parts` contains the positions of shards.
        rank_state: tree of this rank (random state, hooks).
        global_state: tree that rank 0 writes (counters, scheduler, optimizer settings).
        texts: further small files of rank 0.
        unstored: what a resume would lose of this rank, by path (see `launcher.resume.unstored`).
    """

    step: int
    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]
    rank_state: Mapping[str, Any]
    global_state: object
    parts: Mapping[str, ShardSpec] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    is_best: bool = False
    unstored: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Saver:
    """Writes one checkpoint at a time, in a thread, for which it waits a bounded time.

    Args:
        retention: decides which checkpoints are deleted once a newer one is durable.
        patience: seconds without progress after which a writer is abandoned.
    """

    store: CheckpointStore
    ranks: Ranks
    retention: Retention
    patience: float = 600.0

    def __post_init__(self) -> None:
        self.must_wait = False
        """Set once a writer has hung: then training waits for each save, to know the result."""
        self.unstored: dict[str, str] = {}
        """Losses of a resume on any rank, as the newest save has found them."""
        self._writing: Writing | None = None
        self._open()

    def _open(self) -> None:
        # The thread has its own group, so that its collectives never mix with training's
        # collectives.
        self._group = dist.new_group(backend="gloo") if world_size() > 1 else None
        self._buffers = HostBuffers()

    def prepare(self, payload: Payload) -> None:
        """Begin to allocate the memory into which `save` copies such a state."""
        self._buffers.allocate({_shard_name(self.ranks): payload.tensors})

    def save(self, payload: Payload, wait: bool) -> None:
        """Save a checkpoint, on all ranks, and return once the state is copied.

        With `wait`, return once it is durable.

        Raises:
            SaveFailed: it failed, and `wait` is true.
        """
        files = _Files(payload, self.ranks, is_hashed=self.store.chain is not None)
        writing = Writing()
        self._writing = writing
        wait |= self.must_wait
        # If training waits, nothing changes the tensors, and no copy is needed.
        if not wait:
            files.tensors = self._buffers.copy(files.tensors)
        # The writer is a daemon, since a hanging disk must not keep the process from exiting.
        writing.thread = threading.Thread(
            target=self._run, args=(files, writing), name="checkpoint-writer", daemon=True
        )
        writing.thread.start()
        if wait:
            self.finish()

    @property
    def in_flight(self) -> bool:
        """Return whether a save was started and not finished, the same on all ranks."""
        return self._writing is not None

    def finish(self) -> None:
        """Wait, on all ranks, for the current save.

        Raises:
            SaveFailed: it failed, or its writer hangs and was abandoned.
        """
        # All ranks decide alike in each round, so that they make equally many collective calls.
        self._wait(maximum)

    def close(self) -> None:
        """Wait for the current save as long as it makes progress; other ranks may have ended.

        Raises:
            SaveFailed: as `finish`.
        """
        self._wait(None)

    def _wait(self, agree: Callable[[int], int] | None) -> None:
        writing = self._writing
        if writing is None:
            return
        state = ALIVE
        while state == ALIVE:
            writing.thread.join(POLL)
            if not writing.thread.is_alive():
                state = DONE
            elif writing.idle() > self.patience:
                state = HUNG
            if agree is not None:
                state = agree(state)
                # All ranks have answered, and none has a hanging writer.
                progress()
        if state == HUNG:
            writing.give_up(self.patience)
            if agree is not None:
                # The hanging writer keeps its buffers, group and folder.
                self.must_wait = True
                self._open()
        self._writing = None
        if writing.error is not None:
            raise SaveFailed(str(writing.error)) from writing.error

    # -------------------------------------------------------------------------------- in the thread
    def _run(self, files: "_Files", writing: Writing) -> None:
        try:
            self._write(files, writing, self._group)
        # An error of any kind is passed to the training thread.
        except BaseException as error:
            writing.error = writing.error or error

    def _write(self, files: "_Files", writing: Writing, group: object) -> None:
        def collect(act: Callable[[], object]) -> list[Any]:
            return self._collect(act, writing, group)

        main = self.ranks.is_main
        payload = files.payload
        folder: Path = collect(lambda: self.store.begin(payload.step) if main else None)[0]
        try:
            written = collect(lambda: (files.write(folder, writing.advance), payload.unstored))
            entries = [entry for of_rank, _ in written for entry in of_rank]
            self.unstored = {path: text for _, lost in written for path, text in lost.items()}
            collect(lambda: self._commit(files, folder, entries, writing.advance) if main else None)
        except Exception:
            if main:
                self.store.discard(folder)
            raise

    def _commit(
        self,
        files: "_Files",
        folder: Path,
        entries: list[FileEntry],
        advanced: Callable[[], None],
    ) -> None:
        payload = files.payload
        entries = sorted(entries, key=lambda entry: entry.name)
        # The manifest comes after the files of all ranks, and nothing old is deleted before it.
        self.store.commit(folder, replace(payload.manifest, files=entries), advanced)
        if self.store.chain is not None:
            self.store.chain.add(payload.step, files.hashed)
        self.store.tidy(payload.step, self.retention, payload.is_best, advanced)

    def _collect(self, act: Callable[[], object], writing: Writing, group: object) -> list[object]:
        """Call `act` on each rank; every rank gets all results, or learns of a failure."""
        try:
            writing.advance()
            mine: tuple[object, str | None] = (act(), None)
        except Exception as error:
            mine = (None, f"rank {self.ranks.rank}: {type(error).__name__}: {error}")
        answers = [mine]
        if group is not None:
            with writing.waiting_for_others():
                answers = gather(mine, group, writing)
        problems = [problem for _, problem in answers if problem]
        if problems:
            raise SaveFailed("; ".join(problems))
        return [value for value, _ in answers]


class _Files:
    """The files of this rank: state as JSON, and tensors, each by the file's name."""

    def __init__(self, payload: Payload, ranks: Ranks, is_hashed: bool):
        self.payload = payload
        self.is_hashed = is_hashed and ranks.is_main
        self.hashed: dict[str, str] = {}
        """Digests of full tensors for the chain, as far as they are known when `write` returns."""
        self.shard = _shard_name(ranks)
        self.texts = payload.texts if ranks.is_main else {}
        self.tensors: dict[str, Mapping[str, torch.Tensor]] = {self.shard: payload.tensors}
        self.trees: dict[str, object] = {}
        states: dict[str, object] = {f"rank-{ranks.rank:05d}": payload.rank_state}
        if ranks.is_main:
            states["state"] = payload.global_state
        for name, state in states.items():
            tensors: Tensors = {}
            # Encoded here and not in the thread, since training changes the trees meanwhile.
            self.trees[name] = encode(state, tensors)
            self.tensors[name] = tensors

    def write(self, folder: Path, advanced: Callable[[], None]) -> list[FileEntry]:
        entries = [write_json(folder / f"{name}.json", tree) for name, tree in self.trees.items()]
        entries += [write_file(folder / name, [text.encode()]) for name, text in self.texts.items()]
        for name, tensors in self.tensors.items():
            if tensors:
                is_shard = name == self.shard
                parts = self.payload.parts if is_shard else {}
                on_cpu = {key: tensor.detach().cpu() for key, tensor in tensors.items()}
                is_hashed = self.is_hashed and is_shard
                full = {key: on_cpu[key] for key in on_cpu if is_hashed and key not in parts}
                file = folder / f"{name}.safetensors"
                with EarlyDigests(full) as early:
                    entries.append(write_tensors(file, on_cpu, parts, advanced))
                self.hashed |= early.found
        return entries


def _shard_name(ranks: Ranks) -> str:
    return f"shard-{ranks.rank:05d}"


def check_storable(
    tensors: Mapping[str, torch.Tensor], state: Mapping[str, object], optimizer: str
) -> None:
    """Check that tensors, named `<owner>/<name>`, and trees by owner can be stored."""
    all_tensors = dict(tensors)
    for key, tree in state.items():
        try:
            encode(tree, all_tensors, key)
        except TypeError as error:
            advice = f" Or {CONVERT}." if key == "optimizer" else ""
            raise ConfigError(f"{_owner(key, optimizer)}: {error}{advice}") from error
    for name, tensor in all_tensors.items():
        reason = why_not_stored(tensor)
        if reason is not None:
            advice = "convert it, or register it with persistent=False"
            if name.startswith("optimizer/"):
                is_shard = is_sharded(tensor)
                advice = "keep it as state[parameter][name]" if is_shard else CONVERT
            raise ConfigError(
                f"{_owner(name, optimizer)}: {name.removeprefix('model/')} has {reason}, which a"
                f" checkpoint cannot store; {advice}."
            )


CONVERT = "give the optimizer's class a state_dict() and load_state_dict() that convert it"


def _owner(name: str, optimizer: str) -> str:
    first = name.partition("/")[0]
    return {"optimizer": f"optimizer={optimizer}", "_extra_state": "model"}.get(first, first)
