"""A hook that ends a run by an exception."""

from typing import Any

from launcher import BaseHook


class Crasher(BaseHook):
    """Raises after step 5, or once the run's folder has this file."""

    def __init__(self, file: str | None = None):
        self.file = file

    def on_after_step(self, trainer: Any) -> None:
        file = self.file
        if trainer.step == 5 if file is None else (trainer.workspace / file).exists():
            raise RuntimeError("on purpose")
