"""The GPUs that a process may use, as an environment variable names them."""

import os
from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_devices(
    env: Mapping[str, str] = os.environ, variable: str = VISIBLE
) -> list[str] | None:
    """Return the numbers or names of the visible GPUs, or None if the variable is not set."""
    value = env.get(variable)
    return None if value is None else [name for each in value.split(",") if (name := each.strip())]
