"""Random state: python, numpy, torch on every device; as a tree of plain values, so that it can be saved."""

import random
from typing import Any

import numpy as np
import torch


def seed_all(seed: int, rank: int = 0) -> None:
    """Seed every generator for one rank. Ranks differ, so that their dropout does.

    Args:
        seed: the run's seed, any non-negative int below 2**63.
    """
    # SeedSequence spreads neighbouring (seed, rank) pairs; plain seed + rank would give run 1, rank 0 the numbers of
    # run 0, rank 1.
    words = np.random.SeedSequence((seed, rank)).generate_state(3, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]) % 2**32)
    torch.manual_seed(int(words[2]) % 2**63)  # cuda and mps too


def set_deterministic(enabled: bool) -> None:
    """Ask torch for deterministic kernels (an op without one raises) and cuDNN not to choose by timing."""
    if enabled:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def rng_state() -> dict[str, Any]:
    """The state of every generator of this process; `restore_rng` puts it back."""
    state_of: Any = np.random.get_state(legacy=True)
    kind, keys, pos, has_gauss, cached = state_of
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (str(kind), torch.from_numpy(keys.astype(np.int64)), int(pos), int(has_gauss), float(cached)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def fresh_rng(step: int) -> dict[str, Any]:
    """The state for a rank that resumes at `step` and did not exist before: a function of the run's seed, the rank and
    the step, since this process's generator was seeded with the first two."""
    seed_all(torch.initial_seed(), step)
    return rng_state()


def restore_rng(state: dict[str, Any]) -> None:
    """Put back what `rng_state` gave. A device that is not here is passed over: its numbers cannot be drawn here."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, pos, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), pos, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


class isolated_rng:
    """Whatever is drawn inside leaves no trace: evaluation must not move the training's random numbers."""

    def __enter__(self) -> None:
        self._state = rng_state()

    def __exit__(self, *exc: object) -> None:
        restore_rng(self._state)
