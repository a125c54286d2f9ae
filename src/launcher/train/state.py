"""The state of a trainer: its part of a checkpoint beside model, optimizer and hooks; and all of it as a dictionary."""

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from launcher.data.plain import WORKERS_DRAW_ANEW, why_not_exact
from launcher.hooks.state import InMemory, hook_states, hook_tensors, load_hook_states
from launcher.optim.schedulers import load_schedule, set_rates

if TYPE_CHECKING:
    from launcher.train.trainer import BaseTrainer


def state_dict(trainer: "BaseTrainer", options: Any) -> dict[str, Any]:
    """`model`, `training_state`, and the hooks' entries. Tensors are whole under every wrapper.

    Args:
        options: a `StateDictOptions`.
    """
    from torch.distributed.checkpoint.state_dict import get_state_dict  # 1 s of imports, for this call alone

    model, optimizer = get_state_dict(trainer.model, trainer.optimizer, options=options)
    training_state = trainer.training_state()
    hooks = hook_states(trainer, training_state)
    tensors = {name: companion.whole() for name, companion in hook_tensors(trainer).items()}
    own = {key: value for state in reversed(hooks.values()) for key, value in state.items()}  # the first one counts
    state = {"model": model, "training_state": training_state | {"optimizer": optimizer}}
    return {**own, **state, "hooks": hooks, "hook_tensors": tensors}


def load_state_dict(trainer: "BaseTrainer", state: dict[str, Any], options: Any) -> None:
    from torch.distributed.checkpoint.state_dict import set_state_dict

    training_state = state["training_state"]
    trainer.load_training_state(training_state)  # the scheduler before the optimizer: pytorch #119168
    set_state_dict(
        trainer.model,
        trainer.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=training_state["optimizer"],
        options=options,
    )
    set_rates(trainer.optimizer, trainer.lr_scheduler, training_state["lr_scheduler"])
    for hook in trainer.hooks:
        hook.load_tensors(trainer, InMemory(state.get("hook_tensors", {})))
    hooks = state.get("hooks")
    load_hook_states(trainer, hooks or {}, state, is_complete=hooks is not None)


def training_state(trainer: "BaseTrainer") -> dict[str, Any]:
    state, scheduler, source = trainer.state, trainer.lr_scheduler, trainer.source
    return {
        "step": state.step,
        "skipped_steps": state.skipped_steps,
        "skipped_in_row": state.skipped_in_row,
        "epoch": state.epoch,
        "stop_reason": state.stop_reason,
        "max_steps": state.max_steps,
        "lr_scheduler": scheduler.state_dict() if scheduler is not None else None,
        "grad_scaler": trainer.grad_scaler.state_dict(),
        "data_loader": source.state_dict() if hasattr(source, "state_dict") else None,
    }


def load_training_state(trainer: "BaseTrainer", saved: dict[str, Any]) -> None:
    state, source = trainer.state, trainer.source
    state.step = saved["step"]
    state.skipped_steps = saved.get("skipped_steps", 0)
    state.skipped_in_row = saved.get("skipped_in_row", 0)
    state.epoch = saved.get("epoch", 0)
    # A run that is extended is asked to train on.
    state.stop_reason = saved.get("stop_reason") if saved.get("max_steps") == state.max_steps else None
    load_schedule(trainer.lr_scheduler, saved["lr_scheduler"], state.step)
    if saved["grad_scaler"]:
        trainer.grad_scaler.load_state_dict(saved["grad_scaler"])
    position = saved.get("data_loader")
    if position is not None and hasattr(source, "load_state_dict"):
        source.load_state_dict(position)
        # Such as torchdata's StatefulDataLoader; a plain loader says so itself.
        if isinstance(source, DataLoader) and source.num_workers:
            trainer.logger.info(WORKERS_DRAW_ANEW)
    elif state.step and not state.is_at_end():
        reason = "the checkpoint has no position" if position is None else ""
        if not hasattr(source, "load_state_dict"):
            reason = why_not_exact(trainer.data_loader)
        trainer.logger.warning("After this resume the data loader's order starts from the beginning: %s.", reason)
