"""Small trainings, whole and interrupted, as the tasks of several ranks (see `drive`)."""

import hashlib
import os
import shutil
import signal
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.hooks.state import hook_shards
from launcher.process import ranks, signals
from launcher.rundir.folder import RunFolder
from launcher.strategies.ddp import settle_buckets
from launcher.train.build import build_trainer
from launcher.train.composed import Trainer
from launcher.train.trainer import BaseTrainer
from support.composition import composed, run_of

SYNTHETIC = [
    "data=synthetic", "data.seq_len=12", "data.vocab_size=19", "data.num_samples=64",
    "data.num_val_samples=10"
]  # fmt: skip

GPT = ["model=gpt", "model.dim=16", "model.num_layers=2", "model.num_heads=2"]

DIGITS = ["data=digits", "model=mlp"]

TINY = [
    "data.batch_size=12", "optimizer.lr=0.01", "scheduler=cosine", "scheduler.warmup_steps=2",
    "trainer.max_steps=6",
    "trainer.max_grad_norm=0.5", "hooks=[checkpointing]", "hooks.checkpointing.best_metric=null",
    "tracker=[]",
    "device=cpu",
]  # fmt: skip


def is_last(trainer: Any) -> bool:
    """Return whether this is the last rank."""
    return bool(trainer.strategy.ranks.rank == trainer.strategy.ranks.world_size - 1)


class Journal(BaseHook):
    """Notes each step; can send this process a signal in the middle of one."""

    def __init__(self, stop_at: int = 0):
        self.stop_at = stop_at
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.rates: list[float] = []

    def on_before_optimizer_step(self, trainer: Any) -> None:
        if trainer.step == self.stop_at and is_last(trainer):
            os.kill(os.getpid(), signal.SIGTERM)

    def on_after_step(self, trainer: Any) -> None:
        losses = list(map(float, trainer.step_info["loss"]))
        loss = sum(losses) / len(losses)
        self.losses.append(sum(ranks.all_gather(loss)) / ranks.world_size())
        self.norms.append(float(trainer.step_info["grad_norm"]))
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])


def build(folder: Path, overrides: list[str], journal: BaseHook) -> Trainer:
    return build_trainer(run_of(compose(*overrides)), RunFolder(folder), [journal])


@cache
def compose(*overrides: str) -> Any:
    parts = GPT if "data=custom" in overrides else [*SYNTHETIC, *GPT]
    parts = DIGITS if "digits" in overrides else parts
    if "model=pretrained" in overrides:
        parts = []
    rest = [override for override in overrides if override != "digits"]
    has_schedule = any(override.startswith("scheduler=") for override in rest)
    chosen = ("scheduler",) * has_schedule + ("optimizer",) * ("~optimizer" in rest)
    tiny = [each for each in TINY if not each.startswith(chosen)]
    return composed([*parts, *tiny, "run.name=a", "run.id=b", *rest])


def digest(trainer: Trainer) -> str:
    """A hash of this rank's part of all tensors, counters and random state."""
    snapshot = trainer.strategy.snapshot()
    random = torch.get_rng_state().numpy().tobytes()
    state = trainer.training_state()
    # A hook that observes logs further values.
    state["metrics"] = {k: v for k, v in state["metrics"].items() if k.startswith("val/")}
    sha = hashlib.sha256(repr(state).encode() + random)
    tensors, parts = hook_shards(trainer)
    tensors, parts = snapshot.tensors | tensors, snapshot.parts | parts
    for name in sorted(tensors):
        sha.update(f"{name} {parts.get(name)}".encode())
        sha.update(tensors[name].contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def sha(tensor: torch.Tensor) -> str:
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()


def held_bytes(trainer: Trainer) -> dict[str, int]:
    """Memory of this rank's parameters and optimizer state, and what whole ones take in fp32 under
    Adam."""
    parameters, state = list(trainer.model.parameters()), trainer.optimizer.state
    tensors = [*parameters, *state, *(getattr(p, "ds_tensor", p) for p in parameters)]
    values = [value for of_parameter in state.values() for value in of_parameter.values()]
    tensors += [value for value in values if isinstance(value, torch.Tensor)]
    here = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in here}
    return {
        "here": sum(storages.values()),
        "all": 12 * sum(getattr(p, "ds_numel", p.numel()) for p in parameters),
    }


def train(folder: str, overrides: list[str], stop_at: int = 0) -> dict[str, Any]:
    """Train to the end, or to a signal at `stop_at` which the last rank alone gets."""
    journal = Journal(stop_at)
    trainer = build(Path(folder), overrides, journal)
    stopped = 0
    try:
        trainer.train()
    except signals.SignalExit as stop:
        stopped = stop.signum
    signals.forget()
    result = {"losses": journal.losses, "norms": journal.norms, "rates": journal.rates}
    result |= {"step": trainer.step}
    result |= {"stopped": stopped, "digest": digest(trainer), "bytes": held_bytes(trainer)}
    trainer.strategy.teardown()
    return result | {"linear": torch.nn.functional.linear.__module__.split(".")[0]}


def whole_and_interrupted(
    folder: str, overrides: list[str], of_parts: list[str] | None = None
) -> dict[str, Any]:
    """One training that nothing interrupts, and one that is stopped in the middle and resumed; with
    other overrides where they should change nothing."""
    whole = train(f"{folder}/whole", overrides)
    first = train(f"{folder}/parts", of_parts or overrides, stop_at=3)
    second = train(f"{folder}/parts", of_parts or overrides)
    shutil.rmtree(folder) if ranks.Ranks.from_env().is_main else None
    return {"whole": whole, "first": first, "second": second}


def damaged(folder: str, overrides: list[str]) -> dict[str, Any]:
    """One training, and what it ends with again after the last rank's file of its newest checkpoint
    was damaged."""
    overrides = [*overrides, "hooks.checkpointing.interval=3"]
    overrides += ["hooks.checkpointing.keep_previous=2"]
    whole = train(folder, overrides)
    if ranks.Ranks.from_env().is_main:
        shard = max((Path(folder) / "checkpoints" / "latest").glob("shard-*"))
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    again = train(folder, overrides)
    names = sorted(p.name for p in (Path(folder) / "checkpoints").iterdir())
    return {"whole": whole, "again": again, "folders": names}


def lanes_run(folder: str, overrides: list[str], until: int) -> dict[str, Any]:
    """Train to a step with lanes, save there, and describe the state as the checkpoint has it."""
    journal = Journal()
    trainer = build(Path(folder), [*overrides, f"trainer.pause_at={until}"], journal)
    trainer.train()
    result = {"norms": journal.norms, "skipped": trainer.state.skipped_steps}
    result["rng"] = float(torch.rand(()))
    trainer.strategy.teardown()
    return result


class Wrapping(BaseTrainer):
    """A user's trainer, who has joined the group and wrapped the model themselves: by `ddp`, or by
    `fsdp`."""

    def __init__(self, wrapper: str, journal: BaseHook, **settings: Any):
        super().__init__(device="cpu", grad_clip=0.5, gradient_accumulation_steps=2, **settings)
        self.wrapper, self.journal = wrapper, journal

    def build_data_loader(self) -> Any:
        generator = torch.Generator().manual_seed(ranks.rank())
        inputs, targets = (torch.randn(16, size, generator=generator) for size in (5, 1))
        samples = TensorDataset(inputs, targets)
        return DataLoader(samples, 4, shuffle=True, generator=generator)

    def build_model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        if self.wrapper == "fsdp":
            return fully_shard(model)
        settle_buckets(wrapped := DistributedDataParallel(model))
        return wrapped

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def build_hooks(self) -> list[BaseHook]:
        return [self.journal, CheckpointingHook(100)]

    def forward(self, input: Any) -> Any:
        return torch.nn.functional.mse_loss(self.model(input[0]), input[1]), {}


def wrapped_by_the_user(folder: str) -> dict[str, Any]:
    """The final states of both kinds of wrapped models, trained in one go and in two."""
    ranks.join(torch.device("cpu"))
    results = {}
    for wrapper in ("ddp", "fsdp"):
        for name, steps in {"whole": [5], "parts": [3, 5]}.items():  # two steps are an epoch
            for last in steps:
                journal, place = Journal(), Path(folder) / wrapper / name
                trainer = Wrapping(wrapper, journal, max_steps=last, workspace=place)
                trainer.train()
            tensors = trainer.strategy.snapshot().tensors
            result = {"losses": journal.losses[-2:], "norms": journal.norms[-2:]}
            result["tensors"] = {key: sha(value) for key, value in tensors.items()}
            results[f"{wrapper} {name}"] = result
    ranks.leave()
    return results


def initial_weights(overrides: list[str]) -> dict[str, Any]:
    """Hashes of the first weights, and the random numbers that follow."""
    trainer = build(Path("unused"), overrides, Journal())
    weights = trainer.strategy.full_weights() or {}
    result: dict[str, Any] = {"weights": {name: sha(tensor) for name, tensor in weights.items()}}
    result["buffers"] = {name: sha(buffer) for name, buffer in trainer.model.named_buffers()}
    result["next"] = float(torch.rand(()))
    trainer.strategy.teardown()
    return result


def rejected_by(folder: str, overrides: list[str]) -> list[str]:
    """The messages with which a training is rejected in its first step, if it is."""
    trainer = build(Path(folder), overrides, Journal())
    try:
        trainer.train()
    except ConfigError as error:
        return error.messages
    finally:
        trainer.strategy.teardown()
    return []


def rejected(overrides: list[list[str]]) -> list[list[str]]:
    """The sentences with which each composition is rejected."""
    sentences = []
    for composition in overrides:
        try:
            build(Path("unused"), composition, Journal()).strategy.teardown()
            sentences.append(["nothing"])
        except ConfigError as error:
            sentences.append(error.messages)
        ranks.leave()
    return sentences
