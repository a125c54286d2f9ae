"""Writes, commits, verifies, finds and retains checkpoints. The hook decides when this happens."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.checkpoint.stored import weights_digest as weights_digest


def __getattr__(name: str) -> Any:
    # Imported late, since it needs torch and `runs list` does not.
    if name == "weights_digest":
        from launcher.checkpoint.stored import weights_digest

        return weights_digest
    raise AttributeError(name)
