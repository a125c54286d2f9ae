"""The garbage collector, which is off while a command imports."""

import gc

_is_paused = False


def pause() -> None:
    """Collect nothing until `resume`, while a command of Launcher imports."""
    global _is_paused
    _is_paused = _is_paused or gc.isenabled()
    gc.disable()


def resume() -> None:
    """Collect again. Does nothing without `pause`."""
    global _is_paused
    if _is_paused:
        gc.enable()
    _is_paused = False
