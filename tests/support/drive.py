"""Many small trainings in one set of processes: starting them costs more than all of the steps.

Run by `ranks.together` as each rank, with a folder that holds `tasks.json`: a list of [name of a
function here, its arguments]. What the functions return on each rank goes to `results-<rank>.json`.
"""

import gc
import hashlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.hooks.state import hook_shards, hook_tensors
from launcher.hooks.watchdog import WatchdogHook
from launcher.jobs.memory import estimate
from launcher.process import ranks, signals
from launcher.rundir.folder import RunFolder
from launcher.strategies.ddp import settle_buckets
from launcher.train.build import build_trainer
from launcher.train.composed import Trainer
from launcher.train.trainer import BaseTrainer
from support.composition import composed
from support.counted import CountedBytes
from support.masked import Masked
from support.toy import Recorder

SYNTHETIC = [
    "data=synthetic", "data.seq_len=12", "data.vocab_size=19", "data.num_samples=64",
    "data.num_val_samples=10"
]  # fmt: skip
GPT = ["model=gpt", "model.dim=16", "model.num_layers=3", "model.num_heads=2"]
DIGITS = ["data=digits", "model=mlp"]
TINY = [
    "data.batch_size=12", "optimizer.lr=0.01", "scheduler=cosine", "scheduler.warmup_steps=2",
    "trainer.max_steps=6",
    "trainer.max_grad_norm=0.5", "hooks=[checkpointing]", "hooks.checkpointing.best_metric=null",
    "tracker=[]",
    "device=cpu",
]  # fmt: skip


class Journal(BaseHook):
    """Notes each step; can send this process a signal in the middle of one."""

    def __init__(self, stop_at: int = 0):
        self.stop_at = stop_at
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.rates: list[float] = []

    def on_before_optimizer_step(self, trainer: Any) -> None:
        if (
            trainer.step == self.stop_at
            and trainer.strategy.ranks.rank == trainer.strategy.ranks.world_size - 1
        ):
            os.kill(os.getpid(), signal.SIGTERM)

    def on_after_step(self, trainer: Any) -> None:
        loss = sum(float(loss) for loss in trainer.step_info["loss"]) / len(
            trainer.step_info["loss"]
        )
        self.losses.append(sum(ranks.all_gather(loss)) / ranks.world_size())
        self.norms.append(float(trainer.step_info["grad_norm"]))
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])


def build(folder: Path, overrides: list[str], journal: BaseHook) -> Trainer:
    return build_trainer(compose(*overrides), RunFolder(folder), [journal])


@cache
def compose(*overrides: str) -> Any:
    parts = (
        DIGITS
        if "digits" in overrides
        else GPT
        if "data=custom" in overrides
        else [*SYNTHETIC, *GPT]
    )
    if "model=pretrained" in overrides:
        parts = []
    rest = [override for override in overrides if override != "digits"]
    replaced = (
        "scheduler" if any(override.startswith("scheduler=") for override in rest) else "nothing"
    )
    tiny = [override for override in TINY if not override.startswith(replaced)]
    if "optimizer=parts" in rest:
        tiny.remove("optimizer.lr=0.01")
    return composed([*parts, *tiny, "run.name=a", "run.id=b", *rest])


def digest(trainer: Trainer) -> str:
    """A hash of this rank's part of all tensors, counters and random state."""
    snapshot = trainer.strategy.snapshot()
    sha = hashlib.sha256(
        repr(trainer.training_state()).encode() + torch.get_rng_state().numpy().tobytes()
    )
    tensors, parts = hook_shards(trainer)
    tensors, parts = snapshot.tensors | tensors, snapshot.parts | parts
    for name in sorted(tensors):
        sha.update(f"{name} {parts.get(name)}".encode())
        sha.update(tensors[name].contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


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
    result = {
        "losses": journal.losses,
        "norms": journal.norms,
        "rates": journal.rates,
        "step": trainer.step,
    }
    result |= {"stopped": stopped, "digest": digest(trainer), "bytes": held_bytes(trainer)}
    trainer.strategy.teardown()
    return result | {"linear": torch.nn.functional.linear.__module__.split(".")[0]}


def counted_memory(folder: str, overrides: list[str]) -> list[int]:
    """The most memory of a step, as it is counted in training and as it is estimated."""
    with CountedBytes() as counted:
        trainer = build(Path(folder), overrides, BaseHook())
        trainer.hooks = []
        gc.collect()
        counted.peak = 0
        trainer.train()
    trainer.strategy.teardown()
    found, _ = estimate(compose(*overrides), ranks.Ranks.from_env().world_size)
    return [counted.peak, found.peak]


def lanes_run(folder: str, overrides: list[str], until: int) -> dict[str, Any]:
    """Train to a step with lanes, save there, and describe the state as the checkpoint has it."""
    journal = Journal()
    trainer = build(Path(folder), [*overrides, f"trainer.pause_at={until}"], journal)
    for name, p in trainer.unwrapped_model.named_parameters():
        if name.startswith("frozen"):
            assert not p.requires_grad
    trainer.train()
    result = {"norms": journal.norms, "skipped": trainer.state.skipped_steps}
    result["rng"] = float(torch.rand(()))
    trainer.strategy.teardown()
    return result


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
    overrides = [
        *overrides,
        "hooks.checkpointing.interval=3",
        "hooks.checkpointing.keep_previous=2",
    ]
    whole = train(folder, overrides)
    if ranks.Ranks.from_env().is_main:
        shard = max((Path(folder) / "checkpoints" / "latest").glob("shard-*"))
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    again = train(folder, overrides)
    return {
        "whole": whole,
        "again": again,
        "folders": sorted(p.name for p in (Path(folder) / "checkpoints").iterdir()),
    }


def held_bytes(trainer: Trainer) -> dict[str, int]:
    """Memory of this rank's parameters and optimizer state, and what whole ones take in fp32 under
    Adam."""
    parameters, state = list(trainer.model.parameters()), trainer.optimizer.state
    tensors = [*parameters, *state, *(getattr(p, "ds_tensor", p) for p in parameters)]
    tensors += [
        t for values in state.values() for t in values.values() if isinstance(t, torch.Tensor)
    ]
    here = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    storages = {
        storage.data_ptr(): storage.nbytes() for storage in (t.untyped_storage() for t in here)
    }
    return {
        "here": sum(storages.values()),
        "all": 12 * sum(getattr(p, "ds_numel", p.numel()) for p in parameters),
    }


def saved(folder: str, overrides: list[str], steps: int = 3) -> None:
    """Train a few steps and leave a checkpoint."""
    trainer = build(
        Path(folder), [*overrides, f"trainer.max_steps={steps}", "scheduler.max_steps=9"], Journal()
    )
    trainer.train()
    trainer.strategy.teardown()


def loaded(source: str, folder: str, overrides: list[str], steps: int = 4) -> dict[str, Any]:
    """Load a copy of `source`'s newest checkpoint. Returns hashes of whole tensors, each rank's
    RNG, and the samples it takes until step `steps`."""
    ranks.on_main(lambda: shutil.copytree(source, folder, symlinks=True) and None)
    trainer = build(
        Path(folder), [*overrides, f"trainer.max_steps={steps}", "scheduler.max_steps=9"], Journal()
    )
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
    result = {"tensors": {name: _sha(tensor) for name, tensor in whole.items()}}
    result |= {
        "rng": _sha(trainer.resumed_rng["torch"]),
        "samples": trainer.samples,
        "step": trainer.step,
    }
    taken: list[str] = []
    forward = trainer.forward
    trainer.forward = lambda batch: taken.extend(map(_sha, batch[0])) or forward(batch)  # type: ignore[method-assign]
    trainer.train()  # it must still work
    trainer.strategy.teardown()
    return result | {"last": trainer.step, "taken": taken}


def misfits(source: str, folder: str, overrides: list[str]) -> dict[str, str]:
    """Errors that reject each change of the configuration, over a copy of `source`'s newest
    checkpoint."""
    ranks.on_main(lambda: shutil.copytree(source, folder, symlinks=True) and None)
    sentences = {}
    for change in ("optimizer=sgd", "optimizer=lion", "model.dim=32", "model.num_layers=4"):
        trainer = build(Path(folder), [*overrides, change, "scheduler.max_steps=9"], Journal())
        try:
            trainer.restore()
            sentences[change] = "nothing"
        except ConfigError as error:
            sentences[change] = str(error)
        trainer.strategy.teardown()
    return sentences


def hook_values(source: str, folder: str, overrides: list[str]) -> dict[str, str]:
    """Hashes of the tensors that hooks read from a copy of `source`'s newest checkpoint."""
    ranks.on_main(lambda: shutil.copytree(source, folder, symlinks=True) and None)
    trainer = build(Path(folder), [*overrides, "scheduler.max_steps=9"], Journal())
    trainer.restore()
    values = {name: _sha(companion.whole()) for name, companion in hook_tensors(trainer).items()}
    trainer.strategy.teardown()
    return values


def broken(folder: str, overrides: list[str]) -> list[str]:
    """The last rank has a NaN in its middle block in step 3; the reports of that."""
    import logging

    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("launcher").addHandler(handler)
    trainer = build(Path(folder), overrides, Journal())

    def spoil_output(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        is_last = ranks.rank() == ranks.world_size() - 1
        return output * float("nan") if trainer.step == 3 and is_last else None

    trainer.unwrapped_model.blocks[1].ffn.up.register_forward_hook(spoil_output)
    trainer.train()
    logging.getLogger("launcher").removeHandler(handler)
    trainer.strategy.teardown()
    return [line for line in lines if ", rank " in line]


def flipped(folder: str, overrides: list[str]) -> str:
    """One bit of an output flips on the last rank, in the last of the passes that step 4 makes; the
    error of that."""
    trainer = build(Path(folder), overrides, Journal())
    calls = 0

    def flip(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        nonlocal calls
        if trainer.step != 4 or ranks.rank() != ranks.world_size() - 1:
            return None
        calls += 1
        if calls != 2 * trainer.gradient_accumulation_steps + 1:
            return None
        changed = output.detach().clone()
        changed.view(torch.int32).view(-1)[5] ^= 1 << 22
        return output + (changed - output.detach())

    trainer.unwrapped_model.blocks[1].ffn.up.register_forward_hook(flip)
    return training_error(trainer)


def training_error(trainer: Any) -> str:
    """Train; returns the message with which that fails, or ""."""
    try:
        trainer.train()
    except TrainingError as error:
        return str(error)
    finally:
        trainer.strategy.teardown()
    return ""


def stalled(folder: str, overrides: list[str]) -> list[str]:
    """The last rank hangs in step 5. Returns the errors that this rank logs."""
    import logging

    lines: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("launcher").addHandler(handler)
    trainer = build(Path(folder), overrides, journal := Journal())
    (watchdog,) = [hook for hook in trainer.hooks if isinstance(hook, WatchdogHook)]

    def hang_in_step_5(trainer: Any, batch: Any) -> None:
        if trainer.step == 5 and ranks.rank() == ranks.world_size() - 1:
            time.sleep(2 * watchdog.limit)

    journal.on_batch = hang_in_step_5  # type: ignore[method-assign]
    trainer.train()
    logging.getLogger("launcher").removeHandler(handler)
    trainer.strategy.teardown()
    return lines


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
    ranks.on_main(lambda: shutil.copytree(source, folder, symlinks=True) and None)
    trainer = build(
        Path(folder), ["trainer.max_steps=4", "scheduler.max_steps=9", *overrides], Journal()
    )
    trainer.restore()
    snapshot = trainer.strategy.snapshot()
    pieces = [
        (name, tensor.clone(), snapshot.parts.get(name))
        for name, tensor in snapshot.tensors.items()
    ]
    whole: dict[str, torch.Tensor] = {}
    for name, tensor, part in (piece for of_rank in ranks.all_gather(pieces) for piece in of_rank):
        if part is None:
            assert name not in whole, "two ranks have written it"
            whole[name] = tensor
        else:
            flat = whole.setdefault(
                name, torch.full(part.shape, torch.nan, dtype=tensor.dtype)
            ).view(-1)
            assert flat[part.offset[0] :][: len(tensor)].isnan().all(), "two ranks have written it"
            flat[part.offset[0] :][: len(tensor)] = tensor
    check_full_weights(trainer, whole)
    result = {"tensors": {name: _sha(tensor) for name, tensor in whole.items()}}
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


def _sha(tensor: torch.Tensor) -> str:
    return hashlib.sha256(
        tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    ).hexdigest()


def stored(folder: str) -> dict[str, Any]:
    """The newest checkpoint as its files say: hashes of whole tensors, and how many values all
    files hold of each."""
    checkpoint = StoredCheckpoint(Path(folder) / "checkpoints" / "latest")
    names = checkpoint.names()
    return {
        "tensors": {name: _sha(checkpoint.read(name)) for name in names},
        "written": {
            name: sum(torch.Size(piece.shape).numel() for piece in checkpoint._pieces[name])
            for name in names
        },
        "numel": {name: torch.Size(checkpoint.shape(name)).numel() for name in names},
    }


def overflow(folder: str, overrides: list[str]) -> dict[str, Any]:
    """The last rank's loss is infinite in step 2, once."""
    journal = Journal()
    trainer = build(Path(folder), overrides, journal)
    forward, done = trainer.forward, []

    def spoiled(batch: Any) -> Any:
        loss, records = forward(batch)
        if (
            trainer.step == 2
            and not done
            and trainer.strategy.ranks.rank == trainer.strategy.ranks.world_size - 1
        ):
            done.append(True)
            loss = loss * float("inf")
        return loss, records

    trainer.forward = spoiled  # type: ignore[method-assign]
    trainer.train()
    result = {
        "skipped": trainer.state.skipped_steps,
        "digest": digest(trainer),
        "samples": trainer.samples,
    }
    result |= {"scale": trainer.grad_scaler.get_scale(), "losses": journal.losses}
    result["loss_scale"] = trainer.strategy.snapshot().meta.get("loss_scaler", {}).get("cur_scale")
    trainer.strategy.teardown()
    return result


def none_loss(folder: str, overrides: list[str]) -> dict[str, Any]:
    """The last rank's forward gives no loss in step 2, once, without having called the model."""
    trainer = build(Path(folder), overrides, Journal())
    forward, done = trainer.forward, []

    def sometimes(batch: Any) -> Any:
        if (
            trainer.step == 2
            and not done
            and trainer.strategy.ranks.rank == trainer.strategy.ranks.world_size - 1
        ):
            done.append(True)
            return None, {}
        return forward(batch)

    trainer.forward = sometimes  # type: ignore[method-assign]
    trainer.train()
    trainer.strategy.teardown()
    return {"step": trainer.step, "weights": digest(trainer)}


def steered(folder: str, overrides: list[str]) -> dict[str, Any]:
    """Decisions of hooks that steer the run on this rank, and the losses that it logged."""
    logged = Recorder()
    trainer = build(Path(folder) / "run", overrides, logged)
    trainer.train()
    (best,) = [
        hook.best
        for hook in trainer.hooks
        if isinstance(hook, CheckpointingHook) and hook.best is not None
    ]
    trainer.strategy.teardown()
    losses = [records["train"]["loss"] for _, records in logged.records]
    return {
        "losses": losses,
        "step": trainer.step,
        "reason": trainer.state.stop_reason,
        "best": best.state(),
    }


def validated(overrides: list[str]) -> dict[str, float]:
    """The metrics of the first weights, as this rank logs them."""
    logged = Recorder()
    trainer = build(Path("unused"), overrides, logged)
    trainer.restore()
    for hook in trainer.hooks:
        hook.on_ready(trainer)
    trainer.strategy.teardown()
    return {name: float(value) for name, value in logged.records[0][1]["val"].items()}


def uneven_evaluation(
    overrides: list[str], batches: list[int], stop: bool = False
) -> dict[str, Any]:
    """Held-out batches of one sample each, `batches[rank]` of them on this rank; `stop`: a signal
    to the last rank."""
    from launcher.hooks.evaluation import evaluate

    trainer = build(Path("unused"), overrides, Journal())
    rank = trainer.strategy.ranks.rank
    passes = []
    generator = torch.Generator().manual_seed(0)
    samples = torch.randint(0, 19, (sum(batches), 13), generator=generator)
    own = samples[sum(batches[:rank]) :][: batches[rank]]

    def forward(batch: Any) -> Any:
        passes.append(True)
        if stop and len(passes) == 2 and rank == trainer.strategy.ranks.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return trainer.forward(batch)

    pairs = [(sample[None, :-1], sample[None, 1:]) for sample in own]
    metrics = evaluate(forward, trainer.model, pairs, trainer.strategy.forward_context)
    with torch.no_grad(), trainer.strategy.forward_context():
        expected = trainer.forward((samples[:, :-1], samples[:, 1:]))[0]
    signals.forget()
    trainer.strategy.teardown()
    return {"metrics": metrics, "passes": len(passes), "expected": float(expected)}


def one_sided(folder: str, overrides: list[str]) -> str:
    """Errors of training if only rank 1 uses a block."""
    module = ["digits", "model=supervised", "model.module._target_=support.modules.OneSided"]
    return training_error(build(Path(folder), [*overrides, *module], Journal()))


def masked(folder: str, overrides: list[str], micro: int) -> dict[str, Any]:
    """Train on masked targets; the losses, and what an evaluation of 17 samples gives."""
    from launcher.hooks.evaluation import evaluate

    data = [
        "data=custom",
        "data.dataset._target_=support.masked.Masked",
        "data.seq_len=12",
        "data.vocab_size=19",
    ]
    journal = Journal()
    trainer = build(Path(folder), [*data, *overrides, f"trainer.micro_batch_size={micro}"], journal)
    trainer.train()
    own = [Masked(17)[i] for i in range(ranks.rank(), 17, ranks.world_size())]
    batches = [
        torch.utils.data.default_collate(own[i : i + micro]) for i in range(0, len(own), micro)
    ]
    context = trainer.strategy.forward_context
    val = evaluate(trainer.forward, trainer.model, batches, context, trainer.num_targets)
    weights = trainer.strategy.full_weights() or {}
    tables = [buffer.tolist() for buffer in trainer.unwrapped_model.buffers()]
    trainer.strategy.teardown()
    result = {"losses": journal.losses, "norms": journal.norms, "val": val, "tables": tables}
    return result | {"weights": {name: tensor.tolist() for name, tensor in weights.items()}}


def initial_weights(overrides: list[str]) -> dict[str, Any]:
    """Hashes of the first weights, and the random numbers that follow."""
    trainer = build(Path("unused"), overrides, Journal())
    weights = trainer.strategy.full_weights()
    buffers = {name: _sha(buffer) for name, buffer in trainer.model.named_buffers()}
    result = {
        "weights": {name: _sha(tensor) for name, tensor in (weights or {}).items()},
        "buffers": buffers,
    }
    result["next"] = float(torch.rand(()))
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
        samples = TensorDataset(
            torch.randn(16, 5, generator=generator), torch.randn(16, 1, generator=generator)
        )
        return DataLoader(samples, 4, shuffle=True, num_workers=1, generator=generator)

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
                journal = Journal()
                trainer = Wrapping(
                    wrapper, journal, max_steps=last, workspace=Path(folder) / wrapper / name
                )
                trainer.train()
            tensors = {
                key: _sha(value) for key, value in trainer.strategy.snapshot().tensors.items()
            }
            results[f"{wrapper} {name}"] = {
                "losses": journal.losses[-2:],
                "norms": journal.norms[-2:],
                "tensors": tensors,
            }
    ranks.leave()
    return results


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


def main() -> None:
    signals.install()
    torch.set_num_threads(1)
    folder, results = Path(sys.argv[-1]), []
    for name, arguments in json.loads((folder / "tasks.json").read_text()):
        try:
            results.append(globals()[name](**arguments))
        except BaseException:
            print(f"{name} {arguments}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            os._exit(1)
    (folder / f"results-{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
