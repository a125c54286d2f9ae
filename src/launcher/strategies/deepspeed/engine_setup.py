"""DeepSpeed as a library: its version, and the process-wide state that it reads and leaves behind.

Only this module uses private names of DeepSpeed, for the versions that are tested.
"""

import importlib.metadata
import logging
import os
import warnings
from importlib.util import find_spec
from typing import Any

import torch

from launcher.errors import ConfigError

TESTED = ">=0.18.0,<0.20"
"""Tested versions. The extra in pyproject.toml has the same."""
MOVING_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def require() -> None:
    if find_spec("deepspeed") is None:
        raise ConfigError(
            "strategy=deepspeed: needs the package deepspeed; pip install"
            " 'torch-launcher[deepspeed]'."
        )
    # DeepSpeed depends on it.
    from packaging.specifiers import SpecifierSet

    version = importlib.metadata.version("deepspeed")
    if not SpecifierSet(TESTED).contains(version):
        raise ConfigError(
            f"strategy=deepspeed: DeepSpeed {version} is not supported; pip install"
            f" 'deepspeed{TESTED}'."
        )


def start(device: torch.device, local_rank: int, verbose: bool) -> None:
    """Import DeepSpeed, and let it use the existing process group."""
    # The local rank is required even for a single process.
    os.environ.setdefault("LOCAL_RANK", str(local_rank))
    # Without the name DeepSpeed uses a GPU whenever there is one.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    import deepspeed.ops
    from deepspeed.utils import groups

    # The group of an earlier run in this process no longer exists.
    vars(groups)["_WORLD_GROUP"] = None
    if device.type == "cpu":
        # DeepSpeed would compile collectives for minutes, behind a lock that a killed run leaves
        # locked.
        vars(deepspeed.ops)["__compatible_ops__"] = {"deepspeed_shm_comm": False}
    redirect_log(verbose)
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)


def redirect_log(verbose: bool) -> None:
    """Send DeepSpeed's messages to the run's screen and files, not to standard output."""
    logger = logging.getLogger("DeepSpeed")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.filters[:] = [is_relevant]
    # DeepSpeed calls torch's collectives by their former names, several times a step.
    warnings.filterwarnings(
        "ignore", ".*is deprecated. Please use", FutureWarning, "torch.distributed"
    )


def is_relevant(record: logging.LogRecord) -> bool:
    """Return whether to log a message; DeepSpeed calls every optimizer but Adam untested."""
    return "untested optimizer" not in record.getMessage()


def check(config: dict[str, Any], source: str) -> None:
    """Let DeepSpeed check its configuration; `source` begins the message of an error."""
    from deepspeed import DeepSpeedConfig
    from deepspeed.accelerator import get_accelerator

    if config["fp16"]["enabled"] and not get_accelerator().is_fp16_supported():
        name = get_accelerator().device_name()
        raise ConfigError(
            f"precision=fp16: DeepSpeed has no fp16 on this {name}; set precision=bf16 or fp32."
        )
    try:
        DeepSpeedConfig(dict(config))
    # Errors are of several kinds, such as pydantic's.
    except Exception as error:
        raise ConfigError(
            f"{source}: DeepSpeed rejects it: {' '.join(str(error).split())}"
        ) from error


def scaler_state(engine: Any) -> dict[str, object]:
    """Return the state of fp16's loss scaler that changes while training."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    return {key: getattr(scaler, key) for key in MOVING_SCALER_STATE if hasattr(scaler, key)}


def load_scaler_state(engine: Any, state: dict[str, object]) -> None:
    for key, value in state.items():
        setattr(engine.optimizer.loss_scaler, key, value)
