"""The cases of the corpus as users train them: stopped, and resumed in new objects."""

import logging
from pathlib import Path
from typing import Any

from launcher import BaseHook, BaseTrainer, CheckpointingHook
from launcher.errors import ConfigError
from support.stateful.case import STEPS, STOPS, Case, Parts, seed

SAVE_EVERY = 3


class Losses(BaseHook):
    not_state = ("losses",)

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_after_step(self, trainer: Any) -> None:
        self.losses += [float(loss) for loss in trainer.step_info["loss"]]


class Training(BaseTrainer):
    """The parts of a case under Launcher's loop."""

    def __init__(self, parts: Parts, folder: Path, pause_at: int | None, logger: Any) -> None:
        super().__init__(STEPS, device="cpu", workspace=folder, pause_at=pause_at, logger=logger)
        self.parts, self.losses = parts, Losses()

    def build_data_loader(self) -> Any:
        return self.parts.make_loader()

    def build_model(self) -> Any:
        return self.parts.model

    def build_optimizer(self) -> Any:
        return self.parts.optimizer(self.model)

    def build_lr_scheduler(self) -> Any:
        return None if self.parts.scheduler is None else self.parts.scheduler(self.optimizer)

    def build_hooks(self) -> list[BaseHook]:
        saving = CheckpointingHook(SAVE_EVERY, asynchronous=False)
        return [*self.parts.hooks, self.losses, saving]

    def forward(self, input: Any) -> Any:
        return self.model(input)


class Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def train(case: Case, folder: Path, pause_at: int | None = None) -> tuple[list[float], list[str]]:
    """Train a case, from its newest checkpoint if it has one, and return losses and warnings."""
    seed()
    messages, logger = Messages(), logging.getLogger("launcher")
    logger.addHandler(messages)
    try:
        trainer = Training(case.make(), folder, pause_at, logger)
        trainer.train()
    finally:
        logger.removeHandler(messages)
    return trainer.losses.losses, messages.texts


def verdict(case: Case, folder: Path) -> tuple[str, list[str]]:
    """Return what Launcher does with a case: restored, rejected, or different; and its warnings."""
    try:
        whole, texts = train(case, folder / "whole")
        is_equal = True
        for stop in STOPS:
            first, _ = train(case, folder / str(stop), stop)
            is_equal &= first + train(case, folder / str(stop))[0] == whole
    except ConfigError as error:
        return "rejected", [str(error)]
    return "restored" if is_equal else "different", texts
