"""Writes, commits, verifies, finds and retains checkpoints. The hook decides when."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.checkpoint.stored import weights_digest as weights_digest


def __getattr__(name: str) -> Any:
    if name == "weights_digest":  # late: it needs torch, and `runs list` does not
        from launcher.checkpoint.stored import weights_digest

        return weights_digest
    raise AttributeError(name)
