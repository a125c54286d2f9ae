"""Saving: this rank's files, then rank 0's commit; in a thread where training should not wait for the disk."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launcher.checkpoint.files import FileEntry, hash_file, write_file, write_json
from launcher.checkpoint.host import HostBuffers
from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.shards import write_tensors
from launcher.checkpoint.store import BEST, CheckpointStore
from launcher.checkpoint.tree import encode
from launcher.distributed import Ranks, world_size
from launcher.strategies.base import Part


class SaveFailed(Exception):
    """A checkpoint could not be written; every rank raises the same. The one before stands."""


@dataclass
class Payload:
    """What one rank has to save at a step boundary.

    Args:
        tensors: live tensors of this rank, by name; `parts` says where pieces of sharded ones lie.
        rank_state: tree of this rank (random state, hooks).
        global_state: tree that rank 0 writes (counters, scheduler, optimizer settings).
        texts: further small files of rank 0.
        write: for a strategy that writes files of its own into the folder.
    """

    step: int
    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]
    rank_state: Any
    global_state: Any
    parts: Mapping[str, Part] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    write: Callable[[Path], None] | None = None
    is_best: bool = False


class Saver:
    """Writes one checkpoint at a time.

    Args:
        retention: what to delete once a newer one is durable.
    """

    def __init__(self, store: CheckpointStore, ranks: Ranks, retention: Retention):
        self.store, self.ranks, self.retention = store, ranks, retention
        # Collectives of a thread must not meet those of training: a group of its own, on gloo since all is on the host.
        self._group = dist.new_group(backend="gloo") if world_size() > 1 else None
        self._buffers = HostBuffers()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, payload: Payload, wait: bool) -> None:
        """Save.

        Args:
            wait: return once it is durable; else once the state has been copied.
        Raises:
            SaveFailed: `wait`, and it failed.
        """
        rank_tensors: dict[str, torch.Tensor] = {}
        rank_tree = encode(payload.rank_state, rank_tensors)
        global_tensors: dict[str, torch.Tensor] = {}
        global_tree = encode(payload.global_state, global_tensors)
        job = _Job(payload, payload.tensors, (rank_tree, rank_tensors), (global_tree, global_tensors))
        if wait or payload.write is not None:
            self._run(job)
            if self._error is not None and wait:
                error, self._error = self._error, None
                raise SaveFailed(str(error)) from error
            return
        job.detach(self._buffers)
        self._thread = threading.Thread(target=self._run, args=(job,), name="checkpoint-writer", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the save in flight.

        Raises:
            SaveFailed: it failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise SaveFailed(str(error)) from error

    def _run(self, job: "_Job") -> None:
        try:
            self._write(job)
        except Exception as error:  # every kind: it is handed to the training thread
            self._error = error

    def _write(self, job: "_Job") -> None:
        folder = self._agree_on_folder(job.payload.step)
        written = self._collect(lambda: job.write_files(folder, self.ranks))
        entries = [entry for of_rank in written for entry in of_rank]
        self._collect(lambda: self._commit(job, folder, entries) if self.ranks.is_main else None)

    def _agree_on_folder(self, step: int) -> Path:
        folders = self._collect(lambda: self.store.begin(step) if self.ranks.is_main else None)
        assert folders[0] is not None
        return folders[0]

    def _commit(self, job: "_Job", folder: Path, entries: list[FileEntry]) -> None:
        entries = sorted(entries + job.write_global(folder), key=lambda entry: entry.name)
        payload = job.payload
        self.store.commit(folder, _with_files(payload.manifest, entries))
        if payload.is_best:
            self.store.link(BEST, self.store.path(payload.step).name)
        best = self.store.linked(BEST)
        for step in self.retention.to_remove(self.store.steps(), payload.step, () if best is None else (best,)):
            self.store.remove(step)

    def _collect(self, act: Callable[[], Any]) -> list[Any]:
        """Do something on each rank, and know on each whether it worked on all.

        Raises:
            SaveFailed: it failed somewhere.
        """
        try:
            mine: tuple[Any, str | None] = (act(), None)
        except Exception as error:
            mine = (None, f"rank {self.ranks.rank}: {type(error).__name__}: {error}")
        answers = [mine]
        if self._group is not None:
            answers = [mine] * self.ranks.world_size
            dist.all_gather_object(answers, mine, group=self._group)
        if problems := [problem for _, problem in answers if problem]:
            raise SaveFailed("; ".join(problems))
        return [value for value, _ in answers]


Tree = tuple[Any, dict[str, torch.Tensor]]


@dataclass
class _Job:
    payload: Payload
    tensors: Mapping[str, torch.Tensor]
    rank: Tree
    whole: Tree

    def detach(self, buffers: HostBuffers) -> None:
        """Copy every tensor, so that training may change its own."""
        groups = {"t": self.tensors, "r": self.rank[1], "g": self.whole[1]}
        copies = buffers.copy({f"{k}:{name}": t for k, group in groups.items() for name, t in group.items()})
        own = {k: {name: copies[f"{k}:{name}"] for name in group} for k, group in groups.items()}
        self.tensors, self.rank, self.whole = own["t"], (self.rank[0], own["r"]), (self.whole[0], own["g"])

    def write_files(self, folder: Path, ranks: Ranks) -> list[FileEntry]:
        """This rank's: the shard and the rank's state, or what the strategy writes itself."""
        rank = ranks.rank
        entries = [write_json(folder / f"rank-{rank:05d}.json", self.rank[0])]
        if self.rank[1]:
            entries.append(write_tensors(folder / f"rank-{rank:05d}.safetensors", _on_cpu(self.rank[1])))
        if self.payload.write is not None:
            before = set(folder.rglob("*"))
            self.payload.write(folder)
            new = [path for path in folder.rglob("*") if path.is_file() and path not in before] if rank == 0 else []
            entries += [hash_file(path, str(path.relative_to(folder))) for path in new]
        if self.tensors:
            name = f"shard-{rank:05d}.safetensors"
            entries.append(write_tensors(folder / name, _on_cpu(self.tensors), self.payload.parts))
        return entries

    def write_global(self, folder: Path) -> list[FileEntry]:
        entries = [write_json(folder / "state.json", self.whole[0])]
        if self.whole[1]:
            entries.append(write_tensors(folder / "state.safetensors", _on_cpu(self.whole[1])))
        return entries + [write_file(folder / name, [text.encode()]) for name, text in self.payload.texts.items()]


def _on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def _with_files(manifest: Manifest, files: list[FileEntry]) -> Manifest:
    return replace(manifest, files=files)
