"""Save a checkpoint in a thread: each rank writes its files, then rank 0 commits."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launcher.checkpoint.durable_files import FileEntry, write_file, write_json
from launcher.checkpoint.host import HostBuffers
from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.shards import why_not_stored, write_tensors
from launcher.checkpoint.state_tree import encode
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.writing import Writing, gather
from launcher.errors import ConfigError
from launcher.process.deadline import progress
from launcher.process.ranks import Ranks, maximum, world_size
from launcher.strategies.base import ShardSpec
from launcher.strategies.sharded import is_sharded

POLL = 1.0
"""Seconds between two checks of a writer while waiting for it."""
DONE, ALIVE, HUNG = 0, 1, 2


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
    """

    step: int
    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]
    rank_state: object
    global_state: object
    parts: Mapping[str, ShardSpec] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    is_best: bool = False


class Saver:
    """Writes one checkpoint at a time, in a thread, for which it waits a bounded time.

    Args:
        retention: decides which checkpoints are deleted once a newer one is durable.
        patience: seconds without progress after which a writer is abandoned.
    """

    def __init__(
        self, store: CheckpointStore, ranks: Ranks, retention: Retention, patience: float = 600.0
    ):
        self.store, self.ranks, self.retention, self.patience = store, ranks, retention, patience
        self.must_wait = False
        """Set once a writer has hung: then training waits for each save, to know the result."""
        self._writing: Writing | None = None
        self._open()

    def _open(self) -> None:
        # The thread has its own group, so that its collectives never mix with training's
        # collectives.
        self._group = dist.new_group(backend="gloo") if world_size() > 1 else None
        self._buffers = HostBuffers()

    def prepare(self, payload: Payload) -> None:
        """Begin to allocate the memory into which `save` copies such a state."""
        self._buffers.allocate({f"t:{name}": tensor for name, tensor in payload.tensors.items()})

    def save(self, payload: Payload, wait: bool) -> None:
        """Save a checkpoint, on all ranks, and return once the state is copied.

        With `wait`, return once it is durable.

        Raises:
            SaveFailed: it failed, and `wait` is true.
        """
        # Encoded here and not in the thread, since training changes the trees meanwhile.
        rank_tensors: dict[str, torch.Tensor] = {}
        rank_tree = encode(payload.rank_state, rank_tensors)
        global_tensors: dict[str, torch.Tensor] = {}
        global_tree = encode(payload.global_state, global_tensors)
        job = _Job(
            payload, payload.tensors, (rank_tree, rank_tensors), (global_tree, global_tensors)
        )
        self._writing = writing = Writing()
        wait |= self.must_wait
        # If training waits, nothing changes the tensors, and no copy is needed.
        if not wait:
            job.detach(self._buffers)
        # It is a daemon, since a hanging disk must not keep the process from exiting.
        writing.thread = threading.Thread(
            target=self._run, args=(job, writing), name="checkpoint-writer", daemon=True
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
        if (writing := self._writing) is None:
            return
        # All ranks decide alike in each round, so that they make equally many collective calls.
        while True:
            writing.join(POLL)
            state = (
                DONE
                if not writing.is_alive()
                else HUNG
                if writing.idle() > self.patience
                else ALIVE
            )
            worst = maximum(state)
            # All ranks have answered, and none has a hanging writer.
            progress()
            if worst == DONE:
                break
            if worst == HUNG:
                self._give_up(writing)
                break
        self._writing = None
        if writing.error is not None:
            raise SaveFailed(str(writing.error)) from writing.error

    def close(self) -> None:
        """Wait for the current save as long as it makes progress; other ranks may have ended.

        Raises:
            SaveFailed: as `finish`.
        """
        writing, self._writing = self._writing, None
        while writing is not None and writing.is_alive():
            writing.join(POLL)
            if writing.idle() > self.patience:
                writing.give_up(self.patience)
                break
        if writing is not None and writing.error is not None:
            raise SaveFailed(str(writing.error)) from writing.error

    def _give_up(self, writing: Writing) -> None:
        """Abandon a hanging writer, which keeps its buffers, group and folder."""
        writing.give_up(self.patience)
        self.must_wait = True
        self._open()

    # -------------------------------------------------------------------------------- in the thread
    def _run(self, job: "_Job", writing: Writing) -> None:
        try:
            self._write(job, writing, self._group)
        # An error of any kind is passed to the training thread.
        except BaseException as error:
            writing.error = writing.error or error

    def _write(self, job: "_Job", writing: Writing, group: object) -> None:
        def collect(act: Callable[[], object]) -> list[Any]:
            return self._collect(act, writing, group)

        main = self.ranks.is_main
        folder: Path = collect(lambda: self.store.begin(job.payload.step) if main else None)[0]
        try:
            written = collect(lambda: job.write_files(folder, self.ranks, writing.advance))
            entries = [entry for of_rank in written for entry in of_rank]
            collect(lambda: self._commit(job, folder, entries, writing.advance) if main else None)
        except Exception:
            if main:
                self.store.discard(folder)
            raise

    def _commit(
        self, job: "_Job", folder: Path, entries: list[FileEntry], advanced: Callable[[], None]
    ) -> None:
        entries = sorted(entries + job.write_global(folder), key=lambda entry: entry.name)
        # The manifest comes after the files of all ranks, and nothing old is deleted before it.
        self.store.commit(folder, replace(job.payload.manifest, files=entries), advanced)
        self.store.tidy(job.payload.step, self.retention, job.payload.is_best)

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
        if problems := [problem for _, problem in answers if problem]:
            raise SaveFailed("; ".join(problems))
        return [value for value, _ in answers]


Tree = tuple[object, dict[str, torch.Tensor]]


@dataclass
class _Job:
    payload: Payload
    tensors: Mapping[str, torch.Tensor]
    rank: Tree
    whole: Tree

    def detach(self, buffers: HostBuffers) -> None:
        """Copy every tensor, so that training may change its own."""
        groups = {"t": self.tensors, "r": self.rank[1], "g": self.whole[1]}
        copies = buffers.copy(
            {f"{k}:{name}": t for k, group in groups.items() for name, t in group.items()}
        )
        group_copies = {
            k: {name: copies[f"{k}:{name}"] for name in group} for k, group in groups.items()
        }
        self.tensors, self.rank, self.whole = (
            group_copies["t"],
            (self.rank[0], group_copies["r"]),
            (self.whole[0], group_copies["g"]),
        )

    def write_files(
        self, folder: Path, ranks: Ranks, advanced: Callable[[], None]
    ) -> list[FileEntry]:
        """Write the shard and the state of this rank."""
        rank = ranks.rank
        entries = [write_json(folder / f"rank-{rank:05d}.json", self.rank[0])]
        if self.rank[1]:
            entries.append(
                write_tensors(folder / f"rank-{rank:05d}.safetensors", _on_cpu(self.rank[1]))
            )
        if self.tensors:
            name = f"shard-{rank:05d}.safetensors"
            entries.append(
                write_tensors(folder / name, _on_cpu(self.tensors), self.payload.parts, advanced)
            )
        return entries

    def write_global(self, folder: Path) -> list[FileEntry]:
        entries = [write_json(folder / "state.json", self.whole[0])]
        if self.whole[1]:
            entries.append(write_tensors(folder / "state.safetensors", _on_cpu(self.whole[1])))
        return entries + [
            write_file(folder / name, [text.encode()]) for name, text in self.payload.texts.items()
        ]


def _on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def check_storable(
    tensors: Mapping[str, torch.Tensor], state: Mapping[str, object], optimizer: str
) -> None:
    """Check that tensors, named `<owner>/<name>`, and trees by owner can be stored."""
    found = dict(tensors)
    for key, tree in state.items():
        try:
            encode(tree, found, key)
        except TypeError as error:
            advice = f" Or {CONVERT}." if key == "optimizer" else ""
            raise ConfigError(f"{_owner(key, optimizer)}: {error}{advice}") from error
    for name, tensor in found.items():
        if (reason := why_not_stored(tensor)) is not None:
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
