"""Settings of torch that belong to the process, which a run or its model changes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.backends import cudnn


@contextmanager
def restoring_settings() -> Iterator[None]:
    """Restore the settings at the end of the context, since the next run has its own.

    A setting that was not changed is not set again.
    """
    dtype = torch.get_default_dtype()
    deterministic = torch.get_deterministic_debug_mode()
    threads = torch.get_num_threads()
    precision = _matmul_precision()
    benchmark = cudnn.benchmark
    tf32 = cudnn.allow_tf32
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_deterministic_debug_mode(deterministic)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if precision is not None and _matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        if cudnn.benchmark != benchmark:
            cudnn.benchmark = benchmark
        if cudnn.allow_tf32 != tf32:
            cudnn.allow_tf32 = tf32


def _matmul_precision() -> str | None:
    """Return the precision, or None if the kinds of devices have different ones."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
