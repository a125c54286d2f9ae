"""Random generators: the global ones of python, numpy, and torch on every device, and others."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

T = TypeVar("T")
RngState = dict[str, Any]
"""The states of all random generators, as a checkpoint has them."""
HostState = tuple[Any, Any, torch.Tensor]
"""The states of the generators on the CPU, of python, numpy and torch."""
GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
MAX_TWISTS = 1_000
"""Maximum number of blocks of 624 draws that `has_only_drawn` computes, which takes about 3 ms."""


def seed_all(seed: int, rank: int = 0) -> None:
    """Seed every generator for one rank. Ranks differ, so that their dropout masks do."""
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
    numbers = np.random.SeedSequence(entropy).generate_state(3, np.uint64)
    random.seed(int(numbers[0]))
    np.random.seed(int(numbers[1]) % 2**32)
    return int(numbers[2]) % 2**63


def set_deterministic(enabled: bool) -> None:
    """Let torch raise for operations without a deterministic kernel, and cuDNN not time."""
    if enabled:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def seed_host(seed: int) -> None:
    """Seed the generators on the CPU, which a dataset may use.

    `torch.manual_seed` would also seed the model's generators on CUDA, which a forked worker must
    not touch.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


def host_state() -> HostState:
    return random.getstate(), np.random.get_state(legacy=True), torch.default_generator.get_state()


def restore_host(state: HostState) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.default_generator.set_state(state[2])


def call_isolated(function: Callable[[], T]) -> T:
    """Call `function`, then restore the generators on the CPU.

    A signal may end a wait for data with an exception, once, at any instruction, also in the code
    of a context manager. So `restore_host` is called a second time.
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


def rng_state() -> RngState:
    """Return the state of every generator as a tree of plain values and tensors."""
    state = host_tree(host_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def host_tree(state: HostState) -> RngState:
    python, (algorithm, keys, pos, has_gauss, cached), cpu = state
    return {
        "python": python,
        "numpy": (
            str(algorithm),
            torch.from_numpy(keys.astype(np.int64)),
            int(pos),
            int(has_gauss),
            float(cached),
        ),
        "torch": cpu,
    }


def host_of(tree: RngState) -> HostState:
    version, internal, gauss = tree["python"]
    algorithm, keys, pos, has_gauss, cached = tree["numpy"]
    numpy_state = (algorithm, keys.numpy().astype(np.uint32), pos, has_gauss, cached)
    return (version, tuple(internal), gauss), numpy_state, tree["torch"]


def fresh_rng(step: int) -> RngState:
    """Return a new rank's state at `step`, a function of the run's seed, rank and step."""
    seed_all(torch.initial_seed(), step)
    return rng_state()


def restore_rng(state: RngState) -> None:
    """Restore what `rng_state` returned, except for devices that this machine does not have."""
    restore_host(host_of(state))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


class isolated_rng:
    """Restore all generators at the end of the context, for an evaluation during training."""

    def __enter__(self) -> None:
        self._state = rng_state()

    def __exit__(self, *exc: object) -> None:
        restore_rng(self._state)


def is_generator(value: object) -> bool:
    """Return whether a value is a random generator that has a state."""
    return isinstance(value, GENERATORS) and not isinstance(value, random.SystemRandom)


def get_generator_state(generator: Any) -> object:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate((state[0], tuple(state[1]), state[2]))
    else:
        generator.set_state(state)


class Seeding(NamedTuple):
    """Shows at a later time whether a generator has been seeded since."""

    generator: object
    seed: int | None = None
    words: np.ndarray | None = None
    """The state of a Mersenne twister, which does not know its seed."""


def seeding(generator: Any) -> Seeding:
    if isinstance(generator, torch.Generator):
        return Seeding(generator, generator.initial_seed())
    state: Any = get_generator_state(generator)
    if isinstance(generator, random.Random):
        return Seeding(generator, words=np.array(state[1][:-1], np.uint32))
    if isinstance(generator, np.random.RandomState) and isinstance(state, tuple):
        return Seeding(generator, words=state[1])
    # A `Generator` of NumPy has no method that seeds it again.
    return Seeding(generator)


def has_only_drawn(before: Seeding, now: Seeding) -> bool:
    """Return whether a generator is the one before, and has drawn but was not seeded since."""
    if before.generator is not now.generator or before.seed != now.seed:
        return False
    if before.words is None or now.words is None:
        return True
    twister = np.random.MT19937()
    # After the last word of a block, the next draw computes a block.
    twister.state = {"bit_generator": "MT19937", "state": {"key": before.words, "pos": 624}}
    for _ in range(MAX_TWISTS):
        if np.array_equal(twister.state["state"]["key"], now.words):
            return True
        twister.random_raw(624, output=False)
    return False
