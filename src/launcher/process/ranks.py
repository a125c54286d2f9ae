"""Ranks connect, exchange values, and agree on a number without delaying a step."""

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from launcher.errors import ConfigError, TrainingError
from launcher.process import deadline, signals
from launcher.process.device import get_device
from launcher.process.process_id import LISTEN_FD, PARENT, RANK, WORLD_SIZE
from launcher.process.rendezvous_port import MEETING, port_of

logger = logging.getLogger(__name__)
T = TypeVar("T")
STARTING = 120.0
"""Seconds for which a rank that has received a signal waits for ranks that are still starting."""
TIMEOUT = 1800.0
"""Seconds that a rank waits for the others."""
FAILURE = "launcher/failure"


@dataclass(frozen=True)
class Ranks:
    """This process among all, from torchrun's environment variables, or alone without them."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    replica: int = 0
    """The copy of a sharded model, each on a mesh of its own, of which this rank has a shard."""

    @classmethod
    def from_env(cls) -> "Ranks":
        env = os.environ
        return cls(
            int(env.get(RANK, 0)), int(env.get(WORLD_SIZE, 1)), int(env.get("LOCAL_RANK", 0))
        )

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1

    @property
    def device(self) -> torch.device:
        """Return this rank's device, its GPU, else mps, else the CPU. A GPU becomes current."""
        return get_device(self.local_rank)


def is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if is_initialized() else 1


# ------------------------------------------------------------------------------ joining and leaving
class _Meeting:
    store: Any = None
    groups: int = 0
    timeout: float = TIMEOUT
    decisions: int = 0
    exchanges: int = 0
    joined: bool = False
    host_group: object = None


_meeting = _Meeting()


def store(timeout: float = TIMEOUT) -> Any:
    """Return the store through which ranks connect, which rank 0 serves until it ends."""
    if _meeting.store is None:
        _meeting.store = _open_store(Ranks.from_env(), timedelta(seconds=timeout))
    return _meeting.store


def has_met() -> bool:
    """Return whether the store is open, so that the other ranks have reached rank 0."""
    return _meeting.store is not None


def _open_store(ranks: Ranks, timeout: timedelta) -> object:
    if ranks.world_size == 1:
        return dist.HashStore()
    env = os.environ
    job = os.environ.get(MEETING, "")
    # The meeting may be inherited from a job in which torchrun, say, has launched these ranks.
    has_derived_port = job != "" and env["MASTER_PORT"] == str(port_of(job))
    if PARENT not in env and not has_derived_port:
        from torch.distributed.rendezvous import rendezvous

        store, _, _ = next(rendezvous("env://", ranks.rank, ranks.world_size, timeout=timeout))
        return store
    try:
        store = dist.TCPStore(
            env["MASTER_ADDR"],
            int(env["MASTER_PORT"]),
            ranks.world_size,
            ranks.is_main,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=int(env[LISTEN_FD]) if ranks.is_main and PARENT in env else None,
        )
    except dist.DistNetworkError as error:
        if not (ranks.is_main and has_derived_port):
            raise
        raise ConfigError(
            f"The port {env['MASTER_PORT']} of this machine is in use; set MASTER_PORT=<free port>."
        ) from error
    # Ranks of another job with the same port, which has failed, may ask this store.
    return dist.PrefixStore(job, store)


def join(device: torch.device, timeout: float = TIMEOUT) -> None:
    """Join the process group: gloo for tensors on the host, NCCL for tensors on a GPU.

    If there is already a group, nothing is done, and the code that created it must leave it. If a
    rank has received a signal, all ranks exit here together.
    """
    if is_initialized():
        return
    if device.type == "mps":
        raise ConfigError(
            "strategy: ranks cannot exchange what is on an mps device; use strategy=none or"
            " device=cpu."
        )
    ranks = Ranks.from_env()
    _meeting.groups += 1
    _meeting.timeout = timeout
    on_gpu = device.type == "cuda"
    # The process group waits for ranks that are still importing torch.
    deadline.progress(STARTING)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        # A later group of this process must not read the keys of an earlier one.
        store=dist.PrefixStore(f"launcher/group-{_meeting.groups}", store(timeout)),
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=timedelta(seconds=timeout),
        device_id=device if on_gpu else None,
    )
    deadline.progress()
    _meeting.joined = True
    signum = maximum(signals.first_signal())
    if signum:
        leave()
        raise signals.SignalExit(signum)


def leave() -> None:
    """Leave the group that `join` made."""
    _meeting.host_group = None
    if _meeting.joined:
        _meeting.joined = False
        dist.destroy_process_group()


# -------------------------------------------------------------------------------- exchanging values
def host_group() -> object:
    """Create, on all ranks, a gloo group, which mixes with no other and waits for no device."""
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=_meeting.timeout))


def _host_group() -> Any:
    if _meeting.host_group is None:
        _meeting.host_group = host_group()
    return _meeting.host_group


def all_gather(value: T) -> list[T]:
    """Return every rank's value, in rank order, pickled among our own processes only."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value, group=_host_group())
    return values


def broadcast(value: T) -> T:
    """Return rank 0's value, on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=_host_group())
    return box[0]


def maximum(value: int) -> int:
    """Return the largest of all ranks' numbers."""
    return maxima([value])[0]


def maxima(values: list[int]) -> list[int]:
    """Return the largest of all ranks' numbers at each place."""
    if world_size() == 1:
        return values
    numbers = torch.tensor(values)
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=_host_group())
    return numbers.tolist()


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """Sum in place, on the tensor's device. The host does not wait."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def gather_tensors(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """Return all ranks' tensors, of one shape, on the device. The host does not wait."""
    received = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(received, tensor, group=group)
    return received


def on_main(act: Callable[[], T]) -> T:
    """Call `act` on rank 0 only, and return its value or raise its error on every rank.

    It needs no process group. The value must be representable in JSON. If rank 0 has received a
    signal, all ranks exit here together.
    """
    ranks = Ranks.from_env()
    if ranks.world_size == 1:
        return act()
    # All ranks make the same calls in one order, so the number names the same decision on each.
    _meeting.decisions += 1
    key = f"launcher/decision-{_meeting.decisions}"
    if ranks.is_main:
        try:
            signals.check()
            value = act()
        except BaseException as error:
            store().set(key, json.dumps(_describe(error)))
            if isinstance(error, signals.SignalExit):
                _wait_until_read(key, ranks.world_size - 1)
            raise
        store().set(key, json.dumps(["done", value]))
        return value
    outcome, answer = json.loads(store().get(key))
    store().add(f"{key}/read", 1)
    if outcome == "rejected":
        raise ConfigError(*answer)
    if outcome == "stopped":
        raise signals.SignalExit(answer)
    if outcome == "failed":
        raise TrainingError(f"Rank 0 failed: {answer}")
    agreed: T = answer
    return agreed


def wait_for_readers() -> None:
    """Wait on rank 0 until the others have read its last decision, which may end the job."""
    ranks = Ranks.from_env()
    if ranks.is_main and ranks.world_size > 1 and _meeting.decisions:
        _wait_until_read(f"launcher/decision-{_meeting.decisions}", ranks.world_size - 1)


def _wait_until_read(key: str, readers: int) -> None:
    """Wait for the ranks, since one that still imports torch has not read the store yet."""
    deadline.progress(STARTING)
    until = time.monotonic() + STARTING
    while store().add(f"{key}/read", 0) < readers and time.monotonic() < until:
        time.sleep(0.02)


def _describe(error: BaseException) -> list[object]:
    if isinstance(error, ConfigError):
        return ["rejected", error.messages]
    if isinstance(error, signals.SignalExit):
        return ["stopped", error.signum]
    return ["failed", f"{type(error).__name__}: {error}"]


def report_failure(error: BaseException) -> None:
    """Publish why this rank fails. Only the first report of all ranks is kept."""
    ranks = Ranks.from_env()
    if ranks.world_size == 1 or _meeting.store is None:
        return
    try:
        _meeting.store.compare_set(
            FAILURE, "", f"rank {ranks.rank}: {type(error).__name__}: {error}"
        )
    # Rank 0 is gone, and so is the store.
    except RuntimeError as failure:
        logger.debug("The failure of rank %d is not published: %s", ranks.rank, failure)


def read_failure() -> str | None:
    """Return the first failing rank's error; other ranks see only a closed connection."""
    if _meeting.store is None or Ranks.from_env().world_size == 1:
        return None
    try:
        return _meeting.store.get(FAILURE).decode() if _meeting.store.check([FAILURE]) else None
    # Rank 0 is gone, and so is the store.
    except RuntimeError as failure:
        logger.debug("The first failure of the ranks is not known: %s", failure)
        return None


def exchange(text: str, seconds: float) -> list[str] | None:
    """Return the texts of all ranks, or None if one has sent none within the seconds.

    Unlike a collective, it ends although another rank waits for this one in a collective.
    """
    ranks = Ranks.from_env()
    if ranks.world_size == 1:
        return [text]
    _meeting.exchanges += 1
    keys = [f"launcher/text-{_meeting.exchanges}/{rank}" for rank in range(ranks.world_size)]
    store().set(keys[ranks.rank], text)
    until = time.monotonic() + seconds
    while not store().check(keys):
        signals.check()
        if time.monotonic() > until:
            return None
        time.sleep(0.02)
    return [store().get(key).decode() for key in keys]


class Agreement:
    """The maximum over all ranks of a signal number, computed while the optimizer steps.

    If each rank acted on its own flag, one would save while the others wait in a collective. The
    exchange has its own gloo group, which needs no device and does not mix with the training's
    collectives.
    """

    def __init__(self) -> None:
        self._group = host_group() if world_size() > 1 else None
        self.alone = self._group is None
        """There is one process, which may act on a signal without an exchange."""
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: Any = None

    def begin(self, value: int) -> None:
        if self.alone or self._work is not None:
            return
        self._flag[0] = value
        self._work = dist.all_reduce(
            self._flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def result(self, value: int) -> int:
        if self.alone:
            return value
        if self._work is None:
            self.begin(value)
        self._work.wait()
        self._work = None
        return int(self._flag.item())
