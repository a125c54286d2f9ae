"""A hook's function that trains another run while its own is trained."""

import multiprocessing
import threading
from typing import Any

import launcher

errors: list[str] = []
OTHER = ("model=mlp", "data=digits", "trainer.max_steps=1", "seed=9", "device=cpu")


def train_other(trainer: Any) -> None:
    """Train it in this thread, in another one, and in a forked child, which alone may."""
    attempt()
    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
    errors.append(str(child.exitcode))


def train() -> None:
    launcher.compose(*OTHER).train()


def attempt() -> None:
    try:
        train()
    except launcher.ConfigError as error:
        errors.append(str(error))
