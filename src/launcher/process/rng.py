"""The global random generators of this process, of python, numpy, and torch on every device."""

import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

T = TypeVar("T")
HostState = tuple[Any, Any, torch.Tensor]
"""The states of the generators on the CPU, of python, numpy and torch."""


def seed_all(seed: int, rank: int = 0) -> None:
    """Seed every generator for one rank.

    Ranks get different seeds, so that their dropout masks differ.

    Args:
        seed: the run's seed, any non-negative int below 2**63.
        rank: this process among all.
    """
    # SeedSequence spreads neighbouring (seed, rank) pairs; plain seed + rank would give run 1, rank
    # 0 the numbers of run 0, rank 1.
    torch.manual_seed(_seed((seed, rank)))  # cuda and mps too


LANE = 1
"""Last number of the entropy of a lane. Without it, lane 0 would draw the numbers of a rank."""


def seed_lane(seed: int, step: int, lane: int) -> None:
    """Seed every generator for a lane of a step, on whichever rank it is computed."""
    number = _seed((seed, step, lane, LANE))
    # `torch.manual_seed` takes ten times as long where CUDA is not initialized.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(number)


def _seed(entropy: tuple[int, ...]) -> int:
    """Seed the generators of Python and numpy; return the seed for torch's."""
    numbers = np.random.SeedSequence(entropy).generate_state(3, np.uint64)
    random.seed(int(numbers[0]))
    np.random.seed(int(numbers[1]) % 2**32)
    return int(numbers[2]) % 2**63


def set_deterministic(enabled: bool) -> None:
    """Select deterministic kernels in torch, and let cuDNN not choose by timing.

    An operation without a deterministic kernel raises.
    """
    if enabled:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def seed_host(seed: int) -> None:
    """Seed the generators on the CPU, which a dataset may use.

    `torch.manual_seed` would also seed CUDA's generators, which belong to the model and must not be
    touched in a forked worker.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


def host_state() -> HostState:
    return random.getstate(), np.random.get_state(legacy=True), torch.default_generator.get_state()


def restore_host(state: HostState) -> None:
    """Restore what `host_state` returned."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.default_generator.set_state(state[2])


def isolated(function: Callable[[], T]) -> T:
    """Call `function`, then restore the generators on the CPU.

    A signal may end a wait for data with an exception, once, at any instruction
    (`signals.wait_for`). So this is no context manager, whose own code the exception could
    interrupt, and `restore_host` is called a second time.
    """
    outside = host_state()
    try:
        return function()
    finally:
        try:
            restore_host(outside)
        except BaseException:
            restore_host(outside)
            raise


def rng_state() -> dict[str, object]:
    """Return the state of every generator as a tree of plain values and tensors, for a checkpoint.

    See `restore_rng`.
    """
    state = host_tree(host_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def host_tree(state: HostState) -> dict[str, object]:
    """Return what `host_state` returned as a tree of plain values and tensors."""
    python, (kind, keys, pos, has_gauss, cached), cpu = state
    return {
        "python": python,
        "numpy": (
            str(kind),
            torch.from_numpy(keys.astype(np.int64)),
            int(pos),
            int(has_gauss),
            float(cached),
        ),
        "torch": cpu,
    }


def host_of(tree: dict[str, Any]) -> HostState:
    """Return the state whose `host_tree` this is."""
    version, internal, gauss = tree["python"]
    kind, keys, pos, has_gauss, cached = tree["numpy"]
    numpy_state = (kind, keys.numpy().astype(np.uint32), pos, has_gauss, cached)
    return (version, tuple(internal), gauss), numpy_state, tree["torch"]


def fresh_rng(step: int) -> dict[str, object]:
    """Return the state for a rank that resumes at `step` and did not exist before.

    It is a function of the run's seed, the rank and the step, since this process's generator was
    seeded with the first two.
    """
    seed_all(torch.initial_seed(), step)
    return rng_state()


def restore_rng(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned.

    The state of a device that this machine does not have is ignored.
    """
    restore_host(host_of(state))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


class isolated_rng:
    """Restore all generators at the end of the context.

    Evaluation must not change the training's random numbers.
    """

    def __enter__(self) -> None:
        self._state = rng_state()

    def __exit__(self, *exc: object) -> None:
        restore_rng(self._state)
