"""Reject a forward pass that changes a trained parameter of which there are several copies."""

from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from launcher.errors import ConfigError
from launcher.models.changes import Versions, trained
from launcher.process.ranks import world_size
from launcher.strategies.base import Strategy
from launcher.strategies.sharded import is_sharded
from launcher.strategies.weights import unwrap

KEPT = "ds_persist"
"""DeepSpeed's attribute of a parameter that stays gathered."""


@contextmanager
def reject_changes(strategy: Strategy, is_compiled: bool) -> Iterator[None]:
    """Reject a forward pass in the context that changes a parameter which is trained.

    Each rank would change its own copy, or a gathered copy that is dropped. With lanes, the number
    of changes would depend on the number of ranks. Frozen parameters may change, unless they are
    gathered.

    Args:
        strategy: the strategy, after `prepare`.
        is_compiled: whether the model is compiled. A hook on a module would compile it once more,
            so of gathered copies only the changes by `max_norm` are then seen.
    """
    if strategy.lanes is None and world_size() == 1:
        yield
        return
    module = unwrap(strategy.model)
    sharded = {name for name, p in module.named_parameters() if is_sharded(p)}
    with ExitStack() as stack:
        parts = list(module.named_modules()) if sharded else []
        for name, part in parts:
            if is_compiled:
                _check_max_norm(part, name)
            else:
                _watch(part, f"{name}." if name else "", sharded, stack)
        # DeepSpeed gathers these, and drops a change.
        gathered = [(n, p) for n, p in module.named_parameters() if not getattr(p, KEPT, True)]
        versions = Versions([*trained(module), *gathered])
        yield
        changed = versions.changed()
        if changed:
            raise ConfigError(_message(changed[0]))


def _watch(module: nn.Module, prefix: str, sharded: Set[str], stack: ExitStack) -> None:
    """Check the copies of a module's parameters that are gathered while it runs.

    Also a change of a frozen parameter's copy is lost.
    """
    calls: list[Versions] = []

    def note(module: nn.Module, _: Any) -> None:
        named = [(prefix + name, p) for name, p in module.named_parameters()]
        calls.append(Versions((n, p) for n, p in named if n in sharded and not is_sharded(p)))

    def compare(module: nn.Module, _: Any, output: Any) -> None:
        changed = calls.pop().changed()
        if changed:
            raise ConfigError(_message(changed[0]))

    stack.callback(module.register_forward_pre_hook(note).remove)
    stack.callback(module.register_forward_hook(compare, prepend=True).remove)


def _check_max_norm(module: nn.Module, name: str) -> None:
    is_embedding = isinstance(module, nn.Embedding | nn.EmbeddingBag)
    if is_embedding and module.max_norm is not None:
        raise ConfigError(_message(f"{name}.weight"))


def _message(name: str) -> str:
    return (
        f"model: the forward pass changes the parameter {name} itself, as max_norm of nn.Embedding"
        " does, and each rank or lane would change a copy of its own; change it in a hook after the"
        " step, or train on one rank without trainer.lanes."
    )
