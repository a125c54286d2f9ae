"""What DeepSpeed takes from the process that it is in, and what it leaves there."""

import logging
import os
import sys
import warnings
from typing import Any

import torch

from launcher.errors import ConfigError


def start(device: torch.device, local_rank: int, verbose: bool) -> None:
    """Import it, and let it find the process group that there is."""
    os.environ.setdefault("LOCAL_RANK", str(local_rank))  # it insists, though there may be one process alone
    os.environ.setdefault("DS_ACCELERATOR", device.type)  # or it takes a GPU whenever there is one
    import deepspeed.ops

    if device.type == "cpu":
        # Otherwise it compiles collectives of its own for minutes, behind a lock which a killed run leaves locked.
        vars(deepspeed.ops)["__compatible_ops__"] = {"deepspeed_shm_comm": False}
    redirect_log(verbose)
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)


def redirect_log(verbose: bool) -> None:
    """Its messages go to the run's screen and files, not to standard output; those of no use here go nowhere."""
    logger = logging.getLogger("DeepSpeed")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.filters[:] = [is_of_use]
    # It calls torch's collectives by their former names, several times a step.
    warnings.filterwarnings("ignore", ".*is deprecated. Please use", FutureWarning, "torch.distributed")


def is_of_use(record: logging.LogRecord) -> bool:
    """What it calls untested is any optimizer but Adam; those that do not work are refused."""
    return "untested optimizer" not in record.getMessage()


def check(config: dict[str, Any], source: str) -> None:
    """
    Args:
        source: how the sentence of an error begins.
    Raises:
        ConfigError: DeepSpeed refuses the configuration, or this device cannot do fp16.
    """
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.config import DeepSpeedConfig

    if config["fp16"]["enabled"] and not get_accelerator().is_fp16_supported():
        name = get_accelerator().device_name()
        raise ConfigError(f"precision=fp16: DeepSpeed has no fp16 on this {name}; take precision=bf16 or fp32.")
    try:
        DeepSpeedConfig(dict(config))
    except Exception as error:  # of several kinds, pydantic's among them
        raise ConfigError(f"{source}: DeepSpeed refuses it: {' '.join(str(error).split())}") from error


def tidy() -> None:
    """Take back what it leaves in the process, where the next run of a sweep would find it."""
    if "deepspeed.comm.comm" not in sys.modules:
        return
    from deepspeed.comm import comm
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses
    from deepspeed.utils import groups

    comm.cdb = None  # of a process group that is no more
    groups._WORLD_GROUP = None
    # Stage 3 puts a function of its own in the place of torch's, "unless manually reset".
    torch.nn.functional.linear = getattr(
        InsertPostInitMethodToModuleSubClasses, "linear_bk", torch.nn.functional.linear
    )
