"""Checkpoints that go into other strategies and numbers of ranks, as tasks (see `drive`)."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError
from launcher.hooks.state import hook_tensors
from launcher.process import ranks
from launcher.train.composed import Trainer
from support.trainings import Journal, build, sha


def saved(folder: str, overrides: list[str], steps: int = 3) -> None:
    """Train a few steps and leave a checkpoint."""
    words = [*overrides, f"trainer.max_steps={steps}", "scheduler.max_steps=9"]
    trainer = build(Path(folder), words, Journal())
    trainer.train()
    trainer.strategy.teardown()


def copied(source: str, folder: str, overrides: list[str]) -> Trainer:
    """Build a trainer over a copy of `source`."""
    ranks.on_main(lambda: shutil.copytree(source, folder, symlinks=True) and None)
    return build(Path(folder), overrides, Journal())


def loaded(source: str, folder: str, overrides: list[str], steps: int = 4) -> dict[str, Any]:
    """Load a copy of `source`'s newest checkpoint. Returns hashes of whole tensors, each rank's
    RNG, and the samples it takes until step `steps`."""
    words = [*overrides, f"trainer.max_steps={steps}", "scheduler.max_steps=9"]
    trainer = copied(source, folder, words)
    trainer.restore()
    spoil(trainer)
    trainer.restore()  # as after a checkpoint that turned out to be broken
    bare = trainer.unwrapped_model
    live = {f"model/{name}": tensor for name, tensor in bare.state_dict().items()}
    names = {id(p): name for name, p in bare.named_parameters()}
    for p, state in trainer.optimizer.state.items():
        live |= {f"optimizer/{names[id(p)]}/{key}": value for key, value in state.items()}
    whole = {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in live.items()}
    check_full_weights(trainer, whole)
    result = {"tensors": {name: sha(tensor) for name, tensor in whole.items()}}
    result |= {"rng": sha(trainer.restored["rng"]["torch"])}
    result |= {"samples": trainer.samples, "step": trainer.step}
    taken: list[str] = []
    forward = trainer.forward
    trainer.forward = lambda batch: taken.extend(map(sha, batch[0])) or forward(batch)  # type: ignore[method-assign]
    trainer.train()  # it must still work
    trainer.strategy.teardown()
    return result | {"last": trainer.step, "taken": taken}


def misfits(source: str, folder: str, overrides: list[str], changes: list[str]) -> dict[str, str]:
    """Errors that reject each change of the configuration, over a copy of `source`'s newest
    checkpoint."""
    ranks.on_main(lambda: shutil.copytree(source, folder, symlinks=True) and None)
    sentences = {}
    for change in changes:
        trainer = build(Path(folder), [*overrides, change, "scheduler.max_steps=9"], Journal())
        try:
            trainer.restore()
            sentences[change] = "nothing"
        except ConfigError as error:
            sentences[change] = str(error)
        trainer.strategy.teardown()
    return sentences


def seen_by_one(source: str, folder: str, overrides: list[str], rank: int) -> int:
    """Step that this rank begins with where only `rank` sees the checkpoint of `source`."""
    own_rank = os.environ["RANK"]
    own = Path(folder) / own_rank / "name" / "id"
    if own_rank == str(rank):
        shutil.copytree(source, own, symlinks=True)
    trainer = build(own, [*overrides, "scheduler.max_steps=9"], Journal())
    trainer.restore()
    trainer.strategy.teardown()
    return trainer.step


def hook_values(source: str, folder: str, overrides: list[str]) -> dict[str, str]:
    """Hashes of the tensors that hooks read from a copy of `source`'s newest checkpoint."""
    trainer = copied(source, folder, [*overrides, "scheduler.max_steps=9"])
    trainer.restore()
    values = {name: sha(companion.whole()) for name, companion in hook_tensors(trainer).items()}
    trainer.strategy.teardown()
    return values


def spoil(trainer: Trainer) -> None:
    """Other values everywhere, and a state that no checkpoint has."""
    states = [state for state in trainer.optimizer.state.values() for state in [*state.values()]]
    with torch.no_grad():
        for tensor in [*trainer.model.parameters(), *states]:
            tensor.fill_(7)
    for state in trainer.optimizer.state.values():
        state["stale"] = torch.ones(3)


def reloaded(source: str, folder: str, overrides: list[str]) -> dict[str, Any]:
    """Load as `loaded` does, and return the values of each rank's snapshot, for a strategy that
    lays them out in its own way."""
    trainer = copied(source, folder, ["trainer.max_steps=4", "scheduler.max_steps=9", *overrides])
    trainer.restore()
    snapshot = trainer.strategy.snapshot()
    parts, tensors = snapshot.parts, snapshot.tensors
    pieces = [(name, tensor.clone(), parts.get(name)) for name, tensor in tensors.items()]
    whole: dict[str, torch.Tensor] = {}
    for name, tensor, part in (piece for of_rank in ranks.all_gather(pieces) for piece in of_rank):
        if part is None:
            assert name not in whole, "two ranks have written it"
            whole[name] = tensor
        else:
            empty = torch.full(part.shape, torch.nan, dtype=tensor.dtype)
            flat = whole.setdefault(name, empty).view(-1)
            assert flat[part.offset[0] :][: len(tensor)].isnan().all(), "two ranks have written it"
            flat[part.offset[0] :][: len(tensor)] = tensor
    check_full_weights(trainer, whole)
    result = {"tensors": {name: sha(tensor) for name, tensor in whole.items()}}
    result |= {"samples": trainer.samples, "step": trainer.step}
    trainer.train()  # it must still work
    trainer.strategy.teardown()
    return result | {"last": trainer.step}


def check_full_weights(trainer: Trainer, whole: dict[str, torch.Tensor]) -> None:
    """Rank 0 gets all weights, the others none."""
    weights = trainer.strategy.full_weights()
    if not trainer.strategy.ranks.is_main:
        assert weights is None
        return
    assert weights and set(dict(trainer.unwrapped_model.named_parameters())) <= set(weights)
    assert all(torch.equal(whole[f"model/{name}"], tensor) for name, tensor in weights.items())


def stored(folder: str) -> dict[str, Any]:
    """The newest checkpoint as its files say: hashes of whole tensors, and how many values all
    files hold of each."""
    checkpoint = StoredCheckpoint(Path(folder) / "checkpoints" / "latest")
    names = checkpoint.names()
    return {
        "tensors": {name: sha(checkpoint.read(name)) for name in names},
        "written": {
            name: sum(torch.Size(shard.shape).numel() for shard in checkpoint._shards[name])
            for name in names
        },
        "numel": {name: torch.Size(checkpoint.shape(name)).numel() for name in names},
    }
