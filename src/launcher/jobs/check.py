"""job=check: runs one step of the real configuration, without writing a run."""

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from launcher.config.run_config import RunConfig
from launcher.errors import TrainingError, config_error
from launcher.hooks.base import BaseHook
from launcher.hooks.memory import max_memory
from launcher.hooks.view import TrainerView, TrainState
from launcher.jobs.dry_run import trial_trainer
from launcher.models.base import IGNORED
from launcher.process import ranks
from launcher.process.plural import plural, shorten
from launcher.rundir.logs import setup_logging
from launcher.strategies.weights import unwrap
from launcher.train.build import logger
from launcher.train.run_summary import model_lines


class CheckJob:
    """Makes one optimizer step as a run would, and reports shapes, parameters, memory and errors.

    Errors are inputs and labels out of range or not finite, a loss or gradient that is not finite,
    and parameters without a gradient.
    """

    def run(self, config: RunConfig) -> dict[str, object]:
        rank = ranks.Ranks.from_env().rank
        setup_logging(None, rank)
        trainer = trial_trainer(config)
        model = config.plain["model"]
        vocab_size = model.get("vocab_size")
        num_classes = model.get("num_classes")
        watch = _Watch(vocab_size, num_classes, scales=trainer.precision.needs_scaler)
        for line in model_lines(trainer.unwrapped_model, by_module=True):
            logger.info(line)
        trainer.hooks = [watch]
        trainer.lr_scheduler = None
        trainer.state = TrainState(1)
        try:
            trainer.train()
        except Exception as error:
            if config_error(error) is not None:
                raise
            if not isinstance(error, TrainingError) or not watch.issues:
                message = f"{type(error).__name__}: {str(error).strip()}"
                watch.issues.append(f"The step failed: {message}")
                # The other ranks may wait for this one in a collective call.
                if ranks.world_size() > 1:
                    raise TrainingError(_summary(watch.issues)) from error
        issues = sorted(set(chain.from_iterable(ranks.all_gather(watch.issues))))
        memory = max(ranks.all_gather(max_memory(trainer.device)))
        logger.info("Memory: %.2f GiB at its peak, on the rank that used most.", memory)
        trainer.strategy.teardown()
        if issues:
            raise TrainingError(_summary(issues))
        logger.info("No errors. Nothing was written.")
        return {"memory": memory}


def _summary(issues: list[str]) -> str:
    for issue in issues:
        logger.error(issue)
    return f"job=check: {plural(len(issues), 'error')}"


class _Watch(BaseHook):
    needs_gradients = False

    def __init__(self, vocab_size: object, num_classes: object, scales: bool):
        self.vocab_size = vocab_size
        self.num_classes = num_classes
        self.scales = scales
        self.issues: list[str] = []
        self._is_first = True

    def on_batch(self, trainer: TrainerView, batch: Any) -> None:
        tensors = list(name_tensors(batch))
        if self._is_first:
            for name, tensor in tensors:
                dtype = str(tensor.dtype).removeprefix("torch.")
                logger.info("%s: %s %s on %s", name, list(tensor.shape), dtype, tensor.device)
            count = plural(trainer.gradient_accumulation_steps, "micro-batch")
            logger.info("A step has %s a rank.", count)
            self._is_first = False
        if not tensors:
            self.issues.append("The batch has no tensor.")
        for name, tensor in tensors:
            is_last = name == tensors[-1][0]
            self.issues += batch_faults(name, tensor, self.vocab_size, self.num_classes, is_last)
        if self.issues:
            raise TrainingError("The batch has errors.")

    def on_before_optimizer_step(self, trainer: TrainerView) -> None:
        without = [
            name
            for name, p in unwrap(trainer.model).named_parameters()
            if p.requires_grad and p.grad is None
        ]
        if without and trainer.strategy.has_plain_tensors:
            logger.warning("These parameters got no gradient: %s.", shorten(without, 5))

    def on_after_step(self, trainer: TrainerView) -> None:
        info = trainer.step_info
        loss = float(torch.stack(info["loss"]).mean())
        norm = None if info["grad_norm"] is None else float(info["grad_norm"])
        size = "" if norm is None else f", gradient norm {norm:.5g}"
        time = f"{info['step_time']:.3f} s for the step (the first one is slow)"
        logger.info("Loss %.5g%s, %s.", loss, size, time)
        if not math.isfinite(loss):
            self.issues.append(f"The loss is {loss}.")
        elif norm is not None and not math.isfinite(norm) and not self.scales:
            # A loss scaler finds its scale by such norms, so only a run without one has an issue.
            self.issues.append(f"The loss is {loss:.5g}, and the gradient's norm {norm}.")


def name_tensors(batch: object, name: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(batch, torch.Tensor):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from name_tensors(value, f"{name}[{key!r}]")
    elif isinstance(batch, (list, tuple)):
        for index, value in enumerate(batch):
            yield from name_tensors(value, f"{name}[{index}]")


def batch_faults(
    name: str, tensor: torch.Tensor, vocab_size: object, num_classes: object, is_last: bool
) -> Iterator[str]:
    """Describe the problem with a tensor of a batch, whose last one has the labels."""
    if not tensor.numel():
        yield f"{name} is empty."
    elif tensor.is_floating_point():
        bad = int((~tensor.isfinite()).sum())
        if bad:
            yield f"{name} has {bad} of {plural(tensor.numel(), 'value')} NaN or infinite."
    elif tensor.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
        key, size = ("vocab_size", vocab_size) if vocab_size else ("num_classes", num_classes)
        if not isinstance(size, int) or not (vocab_size or is_last):
            return
        values = tensor[tensor != IGNORED] if is_last else tensor
        if not values.numel():
            yield f"{name}: all labels are {IGNORED}, which do not count."
        elif int(values.min()) < 0 or int(values.max()) >= size:
            low = int(values.min())
            high = int(values.max())
            allowed = f"model.{key}={size} allows 0 to {size - 1}"
            yield f"{name} has values from {low} to {high}; {allowed}."
