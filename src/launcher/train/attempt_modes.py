"""The modes of a trainer's model, from the start of an attempt to its end."""

import logging
from collections.abc import Mapping

from torch import nn

from launcher.models.modes import Modes, modes_of, restore_modes, set_modes, start_training
from launcher.process.plural import shorten

MAX_NAMES = 8
"""Names of modules in a message."""


class AttemptModes:
    """Starts training as `model.train()` does. Modes that hooks set after that are kept."""

    def __init__(self, logger: logging.Logger):
        self._logger = logger
        self._taken_out: list[str] = []
        self._at_end: Modes | None = None

    def start(self, model: nn.Module) -> None:
        """Put the model into training mode, or if it has trained, into the modes of its end."""
        if self._at_end is None:
            self._taken_out = start_training(model)
        else:
            set_modes(self._at_end)

    def report(self) -> None:
        """Name the parts that `start` has taken out of evaluation mode."""
        if self._taken_out:
            self._logger.warning(
                "In evaluation mode before training, and now in training mode, as by model.train():"
                " %s. A hook may set a part to eval(), and it stays so.",
                shorten([name or "the model" for name in self._taken_out], MAX_NAMES),
            )
        self._taken_out = []

    def restore(self, model: nn.Module, stored: Mapping[str, bool]) -> None:
        unknown = restore_modes(model, stored)
        if unknown:
            self._logger.warning(
                "The checkpoint has the modes of modules that the model does not have: %s.",
                shorten(unknown, MAX_NAMES),
            )

    def end(self, model: nn.Module) -> None:
        self._at_end = modes_of(model)
