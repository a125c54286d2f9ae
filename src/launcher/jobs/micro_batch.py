"""`trainer.micro_batch_size=auto`: the largest micro-batch whose step fits the memory of a rank."""

import copy
import os
from bisect import bisect_left
from collections.abc import Callable
from functools import cache

from omegaconf import DictConfig

from launcher.config.checks import batch_issue
from launcher.config.sections import AUTO
from launcher.errors import ConfigError
from launcher.process.memory import rank_memory
from launcher.process.ranks import Ranks, on_main
from launcher.rundir.folder import RunFolder
from launcher.rundir.record_format import read_record
from launcher.rundir.space import parse_size, size
from launcher.strategies.base import UnknownMemory
from launcher.train.build import logger

USED = 0.8
"""The part of a rank's memory that a step may need. The rest is for the libraries, the fragments
between tensors, what hooks keep, and the error of the estimate."""


def with_micro_batch_size(
    config: DictConfig, folder: RunFolder, device_memory: str | None = None
) -> DictConfig:
    """Return the configuration with a number in place of `auto`, the same on all ranks.

    Rank 0 decides and logs it.

    Args:
        config: of the run.
        folder: of the run, whose earlier attempts with as many ranks are followed.
        device_memory: of one rank (80GB). Default None: what rank 0 has.
    Raises:
        ConfigError: no micro-batch fits, or the memory of a part is not known.
    """
    if config.trainer.get("micro_batch_size") != AUTO:
        return config
    ranks = Ranks.from_env()

    def decide() -> int:
        memory = (
            rank_memory(config.device, ranks.local_rank, os.environ)
            if device_memory is None
            else parsed_memory(device_memory)
        )
        earlier = earlier_size(folder, ranks.world_size)
        return logged_choice(config, ranks.world_size, memory, earlier)

    return with_size(config, on_main(decide))


def with_size(config: DictConfig, micro_batch_size: int) -> DictConfig:
    config = copy.deepcopy(config)
    config.trainer.micro_batch_size = micro_batch_size
    return config


def parsed_memory(device_memory: str) -> int:
    """Return the bytes that a text such as 80GB means.

    Raises:
        ConfigError: it is not an amount of memory.
    """
    memory = parse_size(device_memory)
    if memory is None:
        raise ConfigError(
            f"job.device_memory={device_memory}: should be a number and a unit; e.g. 80GB."
        )
    return int(memory)


def earlier_size(folder: RunFolder, world_size: int) -> int | None:
    """The micro-batch of the newest attempt with as many ranks, or None."""
    try:
        attempts = read_record(folder.record_path).get("attempts", [])
    # A record that is damaged is reported elsewhere.
    except (OSError, ValueError):
        return None
    sizes = [one.get("micro_batch_size") for one in attempts if one["world_size"] == world_size]
    return next((found for found in reversed(sizes) if found is not None), None)


def logged_choice(
    config: DictConfig, world_size: int, memory: int, earlier: int | None = None
) -> int:
    """Choose, and log a line that says why.

    Args:
        config: with any micro-batch.
        world_size: number of ranks.
        memory: bytes of a rank.
        earlier: what the run had before, which is kept if it fits.
    Raises:
        ConfigError: no micro-batch fits, or the memory of a part is not known.
    """
    # It needs a second of imports.
    from launcher.jobs.memory import estimate

    @cache
    def peak(micro_batch_size: int) -> int:
        return estimate(with_size(config, micro_batch_size), world_size)[0].peak

    if issue := batch_issue(config.data.batch_size, world_size):
        raise ConfigError(str(issue))
    sizes = divisors(config.data.batch_size // world_size)
    try:
        chosen = earlier if earlier in sizes and peak(earlier) <= USED * memory else None
        kept = "" if chosen is None else ", as before"
        chosen = chosen or largest(sizes, peak, USED * memory)
        if peak(chosen) > memory:
            raise ConfigError(
                f"trainer.micro_batch_size={AUTO}: a step of one sample needs {size(peak(1))} of"
                f" the {size(memory)} of a rank; use strategy=fsdp with more ranks,"
                " trainer.activation_checkpointing=full, or a smaller model."
            )
    except UnknownMemory as unknown:
        raise ConfigError(
            f"trainer.micro_batch_size={AUTO}: {unknown}, or set a number."
        ) from unknown
    larger = [each for each in sizes if each > chosen]
    more = f"; {larger[-1]} would need {size(peak(larger[-1]))}" if larger and not kept else ""
    logger.info(
        "trainer.micro_batch_size=%s: %d%s. A step needs about %s of the %s of a rank, of which it"
        " may use %.0f %%%s.",
        AUTO,
        chosen,
        kept,
        size(peak(chosen)),
        size(memory),
        100 * USED,
        more,
    )
    return chosen


def divisors(share: int) -> list[int]:
    """The sizes of micro-batches that divide the samples of a rank, the largest first."""
    return [each for each in range(share, 0, -1) if share % each == 0]


def largest(sizes: list[int], peak: Callable[[int], int], limit: float) -> int:
    """The first of the falling sizes whose peak is within the limit, or the last one.

    The first is tried first, since most steps fit as a whole.
    """
    if peak(sizes[0]) <= limit:
        return sizes[0]
    smaller = sizes[1:]
    at = bisect_left(smaller, True, key=lambda each: peak(each) <= limit)
    return smaller[at] if at < len(smaller) else sizes[-1]
