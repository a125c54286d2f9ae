"""strategy=auto, which is chosen by the number of ranks."""

from launcher.process.ranks import Ranks
from launcher.strategies.base import Strategy

own_steps = True
"""One process is started for a model that steps its own optimizers, so it is `none`."""


def auto() -> Strategy:
    """Return fsdp with its defaults for several ranks, none for one."""
    if Ranks.from_env().world_size > 1:
        from launcher.strategies.fsdp import FsdpStrategy

        return FsdpStrategy()
    from launcher.strategies.none import NoStrategy

    return NoStrategy()
