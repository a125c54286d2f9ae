"""A hook that ends a run by an exception."""

from typing import Any

from launcher import BaseHook


class Crasher(BaseHook):
    def on_after_step(self, trainer: Any) -> None:
        if trainer.step == 5:
            raise RuntimeError("on purpose")
