"""Classes with state as users write them, and what a plain loop loses of them by a resume."""

from support.stateful import harmless, losing
from support.stateful.case import CASES, STOPS, Case, Parts, plain_losses, resumed_losses

__all__ = [
    "CASES",
    "STOPS",
    "Case",
    "Parts",
    "harmless",
    "losing",
    "plain_losses",
    "resumed_losses",
]
