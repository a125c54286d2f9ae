"""Rules of `trainer.lanes`. The code that depends on a rule calls the same function."""

from collections.abc import Iterator

from launcher.config.messages import ConfigIssue, show
from launcher.config.settings import TrainerSettings
from launcher.process.plural import plural


def without_effect(lanes: object) -> set[str]:
    """Return the keys that cannot change a run's numbers with this value of `trainer.lanes`."""
    if lanes is None:
        return set()
    return {"strategy", "trainer.micro_batch_size"}


def lane_issues(
    settings: TrainerSettings, batch_size: int | None, world_size: int, source: str | None = None
) -> Iterator[ConfigIssue]:
    """Return the issues of `trainer.lanes` that are visible in the configuration alone."""
    lanes = settings.lanes
    if lanes is None:
        return
    if lanes.bit_count() != 1:
        below = 1 << (lanes.bit_length() - 1)
        yield _issue(lanes, f"should be a power of two; e.g. trainer.lanes={below} or {2 * below}.")
        return
    if batch_size and batch_size % lanes:
        text = f"is not divisible by trainer.lanes={lanes}; use {multiples(batch_size, lanes)}."
        yield ConfigIssue("data.batch_size", str(batch_size), text)
        return
    if lanes % world_size:
        ways = (1 << (world_size.bit_length() - 1), 1 << world_size.bit_length())
        fits = " or ".join(str(n) for n in ways if n <= lanes) or str(lanes)
        ranks = describe_ranks(world_size, source)
        yield _issue(lanes, f"is not divisible by {ranks}; use {fits} ranks.")
    lane = (batch_size or 0) // lanes
    micro = settings.micro_batch_size
    if lane and micro not in (None, lane):
        text = (
            f"a lane is a micro-batch of {plural(lane, 'sample')} (data.batch_size={batch_size},"
            f" trainer.lanes={lanes}); use trainer.micro_batch_size=null."
        )
        yield ConfigIssue("trainer.micro_batch_size", str(micro), text)
    if settings.sync_every_micro_batch:
        text = "with trainer.lanes the strategy decides when ranks exchange gradients; use false."
        yield ConfigIssue("trainer.sync_every_micro_batch", "true", text)
    if settings.compile is not False:
        text = (
            "the compiler fuses operations by the strategy, so trainer.lanes would give other"
            " numbers; use trainer.compile=false, or trainer.lanes=null."
        )
        yield ConfigIssue("trainer.compile", show(settings.compile), text)


def describe_ranks(world_size: int, source: str | None) -> str:
    """Format a number of ranks, with the keys that decide it if they are known."""
    if source:
        return f"{world_size} ranks ({source})"
    return f"{world_size} ranks"


def multiples(size: int, unit: int) -> str:
    """The multiples of `unit` on both sides of `size`."""
    sizes = (size // unit * unit, (size // unit + 1) * unit)
    return " or ".join(str(multiple) for multiple in sizes if multiple)


def support_issue(lanes: int, strategy: str) -> ConfigIssue:
    """The issue of a strategy whose class does not declare that it supports lanes."""
    return _issue(
        lanes,
        f"strategy={strategy} may add gradients in an order of its own, since its class does not"
        " declare supports_lanes=True; use strategy=fsdp, ddp or none, or trainer.lanes=null.",
    )


def _issue(lanes: int, text: str) -> ConfigIssue:
    return ConfigIssue("trainer.lanes", str(lanes), text)
