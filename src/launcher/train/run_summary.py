"""Summaries that a run prints at its start and at its end."""

import logging
import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from torch import nn

from launcher.config.run_config import RunConfig
from launcher.data.iterable import length
from launcher.hooks.records import show
from launcher.process.device import device_name
from launcher.process.plural import plural
from launcher.process.printable import encodable
from launcher.rundir.folder import step_name
from launcher.rundir.history import read_rows, sparkline, values_of
from launcher.rundir.record import RunRecord
from launcher.strategies.weights import is_fully_sharded
from launcher.train.composed import Trainer

logger = logging.getLogger("launcher")

CURVE_WIDTH = 32
PLACES = ("run.", "paths.", "hydra.", "hydra/")
"""Prefixes of overrides that set where a run is stored, or how Hydra works."""


def log_lines(lines: Iterable[str]) -> None:
    for line in lines:
        logger.info(line)


def start_lines(trainer: Trainer, config: RunConfig) -> Iterator[str]:
    """Describe the device, the model, the data, and the settings that are not defaults."""
    ranks = trainer.strategy.ranks.world_size
    strategy = trainer.strategy.name
    precision = f"{trainer.precision.name}{', compiled' if config.trainer.compile else ''}"
    yield (
        f"Device: {device_name(trainer.device)}, {plural(ranks, 'rank')}, {strategy=!s},"
        f" {precision=!s}"
    )
    yield from model_lines(trainer.unwrapped_model)
    if trainer.precision.note:
        yield f"Precision: {trainer.precision.note}"
    yield f"Data: {data_line(trainer)}"
    # Of two values of a key the last one counts.
    overrides = {text.lstrip("+~").partition("=")[0]: text for text in config.overrides}
    shown = [text for key, text in overrides.items() if not key.startswith(PLACES)]
    if shown:
        yield f"Not default: {' '.join(shown)}"


def model_lines(model: nn.Module, by_module: bool = False) -> Iterator[str]:
    """Describe the model's class and parameters, where tied tensors count once."""
    total, trainable = parameter_counts(model, set())
    yield f"Model: {class_name(model)}, {total:,} parameters{describe_trainable(total, trainable)}"
    seen: set[nn.Parameter] = set()
    if not by_module:
        return
    for name, child in model.named_children():
        count, own_trainable = parameter_counts(child, seen)
        yield f"  {name}: {class_name(child)}, {count:,}{describe_trainable(count, own_trainable)}"


def class_name(module: nn.Module) -> str:
    """Return a module's own class, from which `fully_shard` derives a class `FSDP...`."""
    own = type(module).__bases__[-1] if is_fully_sharded(module) else type(module)
    return own.__name__


def parameter_counts(module: nn.Module, seen: set[nn.Parameter]) -> tuple[int, int]:
    """Count all parameters, and the trainable ones, except for those in `seen`."""
    new = {parameter for parameter in module.parameters() if parameter not in seen}
    seen |= new
    # ZeRO 3 leaves an empty tensor.
    sizes = {parameter: int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in new}
    return sum(sizes.values()), sum(sizes[p] for p in new if p.requires_grad)


def describe_trainable(total: int, trainable: int) -> str:
    return "" if total == trainable else f", {trainable:,} trainable"


def data_line(trainer: Trainer) -> str:
    """Describe the samples, the steps of an epoch, and how the batch is divided."""
    plan = trainer.strategy.plan
    ranks = trainer.strategy.ranks.world_size
    assert plan.micro_batch_size is not None
    batch = plan.micro_batch_size * plan.grad_accum_steps * ranks
    samples = length(getattr(trainer.data_loader, "dataset", None))
    size = "a stream"
    if samples is not None:
        size = f"{plural(samples, 'sample')}, {samples / batch:,.4g} steps an epoch"
    factors = [f"{plan.micro_batch_size} a micro-batch"]
    factors += [f"{plan.grad_accum_steps} accumulated"] if plan.grad_accum_steps > 1 else []
    factors += [f"{ranks} ranks"] if ranks > 1 else []
    return f"{size}, batch {batch}{' = ' + ' x '.join(factors) if len(factors) > 1 else ''}"


def is_in_sweep() -> bool:
    return HydraConfig.initialized() and str(HydraConfig.get().mode).endswith("MULTIRUN")


def end_lines(record: RunRecord, outputs: str, stream: object) -> Iterator[str]:
    """Describe the best metric, the loss, the newest checkpoint, and the commands for them."""
    folder = record.folder
    best = record.data["best"]
    if best is not None:
        yield f"Best: {best['metric']} {show(float(best['value']))} at step {best['step']}"
    losses = values_of(read_rows(folder.metrics_path), "train/loss")
    if len(losses) > 1:
        curve = f"  {sparkline(losses, CURVE_WIDTH)}"
        shown = curve if encodable(curve, stream) else ""
        yield f"Loss: {show(losses[0], 4)} to {show(losses[-1], 4)}{shown}"
    step = folder.newest_step()
    if step:
        yield f"Checkpoint: {folder.checkpoints / step_name(step)}"
    if is_in_sweep() or record.attempt.get("slurm_job_id") is not None:
        return
    is_default = Path(outputs).absolute() == Path("outputs").absolute()
    suffix = "" if is_default else f" --outputs {shlex.quote(outputs)}"
    # The id alone is ambiguous if a run of another name has the same configuration.
    run = shlex.quote(f"{record.data['name']}/{record.data['id']}")
    verbs = ("evaluate", "export") if record.state == "completed" else ("resume",)
    possible = [*(verbs if step else ()), *(["plot"] if folder.metrics_path.exists() else ())]
    for verb in possible:
        yield f"To {verb}: python -m launcher.runs {verb} {run}{suffix}"


def format_time(record: RunRecord) -> str:
    """Format the time of the newest and all attempts: `0:01:10 (0:03:05 in 2 attempts)`."""
    parse = datetime.fromisoformat
    spans = [
        max(parse(ended) - parse(attempt["started"]), timedelta())
        for attempt in record.attempts
        if (ended := attempt.get("ended")) is not None
    ]
    if not spans:
        return "0:00:00"
    total = f" ({sum(spans, timedelta())} in {len(spans)} attempts)" if len(spans) > 1 else ""
    return f"{spans[-1]}{total}"
