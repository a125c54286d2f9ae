"""The garbage collector, which is off until training begins.

Imports make hundreds of thousands of long-lived objects.
"""

import gc

_is_paused = False


def pause() -> None:
    """Collect nothing until `resume`.

    For a command of Launcher, before it imports anything slow.
    """
    global _is_paused
    _is_paused = _is_paused or gc.isenabled()
    gc.disable()


def resume() -> None:
    """Collect again, except the objects that exist already. Does nothing without `pause`."""
    global _is_paused
    if _is_paused:
        gc.freeze()
        gc.enable()
    _is_paused = False
