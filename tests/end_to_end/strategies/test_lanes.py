"""With lanes, the same bits on any number of ranks and under any strategy that adds gradients."""

from importlib.util import find_spec

import pytest

from support.ranks import Task, by_name, task
from support.reloading import stored
from support.runner import metrics_of

LAYOUTS = {
    "none": (1, ["strategy=none"]),
    "ddp x2": (2, ["strategy=ddp"]),
    "fsdp x2": (2, ["strategy=fsdp", "strategy.sharding=shard_grad_op", "strategy.prefetch=1"]),
    "no_shard x2": (2, ["strategy=fsdp", "strategy.sharding=no_shard"]),
    "hybrid 2x2": (4, ["strategy=fsdp", "strategy.replicate=2"]),
}
COMMON = [
    "trainer.lanes=4", "data.batch_size=8", "hooks=[checkpointing,logging,evaluation]",
    "hooks.logging.interval=2", "hooks.evaluation.interval=3",
    "hooks.checkpointing.best_metric=null",
]  # fmt: skip
HOOKS = [
    "hooks=[checkpointing,logging,evaluation,ema,skip_spikes,gradients,nan_report]",
    "hooks.ema.decay=0.9", "hooks.skip_spikes.warmup=1", "hooks.skip_spikes.sigmas=0.5",
    "hooks.skip_spikes.interval=1", "hooks.gradients.interval=1",
]  # fmt: skip
OWN = [
    "digits", "model=supervised", "model.module._target_=support.modules.TiedAndFrozen",
    "optimizer=lion", "trainer.max_grad_norm=null",
]  # fmt: skip
LLAMA = [
    "digits", "data=synthetic", "data.seq_len=12", "data.vocab_size=19", "data.num_samples=64",
    "data.num_val_samples=10", "model=huggingface", "model.config.model_type=llama",
    "model.config.n_embd=16", "model.config.n_head=2", "+model.config.intermediate_size=24",
    "model.config.n_layer=1",
    "+model.config.attention_dropout=0.1",
]  # fmt: skip
PAIRS = [
    "digits", "model=supervised", "model.module._target_=support.modules.Pairs",
    "scheduler=constant",
]  # fmt: skip
STREAM = [
    *PAIRS, "data=custom", "data.dataset._target_=support.indexed.Stream", "+data.dataset.size=20",
    "data.val_datasets={a: {_target_: support.indexed.Indexed, size: 9},"
    " b: {_target_: support.indexed.Stream, size: 11}}",
]  # fmt: skip
MIXTURE = [
    *PAIRS, "data=mixture",
    "data.sources={a: {_target_: support.indexed.Indexed, size: 15, weight: 0.7,"
    " val_dataset: {_target_: support.indexed.Indexed, size: 9}},"
    " b: {_target_: support.indexed.Indexed, size: 4, weight: 0.3}}",
]  # fmt: skip
SHORT = ["data.num_samples=20", "model.logits_chunk=5"]
FP8 = [
    "precision=fp8", "precision.emulate=true", "model.dim=32", "model.num_layers=1",
    "model.logits_chunk=5", "model.tie_embeddings=false",
]  # fmt: skip
RUNS: dict[str, tuple[list[str], list[str]]] = {
    # The chain's: four ranks have two lanes each.
    "gpt, dropout": (
        ["model.dropout=0.1", "model.num_layers=1", "trainer.lanes=8", "data.batch_size=16"],
        [],
    ),
    "gpt, bf16, epochs": (
        ["model.dropout=0.1", "precision=bf16", "optimizer=sgd", *SHORT],
        ["fsdp x2"],
    ),
    "gpt, fp16": (["precision=fp16", "precision.init_scale=1e9", "model.num_layers=1"], ["ddp x2"]),
    "mlp, hooks": (["digits", "optimizer.lr=0.3", *HOOKS], ["ddp x2"]),
    "own module, workers": (OWN, ["no_shard x2"]),
    "llama": (LLAMA, ["fsdp x2"]),
    "stream, validation sets": (STREAM, ["ddp x2"]),
    "mixture": (MIXTURE, ["fsdp x2"]),
    **({"gpt, fp8": (FP8, ["fsdp x2"])} if find_spec("torchao") else {}),
}
"""Overrides, and the layouts that are compared with one rank: some layouts for each run, since each
part of a run meets each kind of layout in one of them."""
WORKERS = {"no_shard x2": ["data.num_workers=1"]}
STEPS, BOUNDARIES = 6, (2, 4, 6)
PHASES = 1, 4, 2
"""Ranks that are started one group after the other."""
CHAINED, CHAIN = ("gpt, dropout", "chain"), ("none", "hybrid 2x2", "ddp x2")
CASES = [(run, layout) for run, (_, layouts) in RUNS.items() for layout in layouts] + [CHAINED]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Tensors of the checkpoint and numbers of metrics.jsonl, by run and layout or chain."""
    root = tmp_path_factory.mktemp("lanes")
    left = {(run, layout): [(layout, STEPS)] for run, layout in CASES}
    left |= {(run, "none"): [("none", STEPS)] for run in RUNS}
    left[CHAINED] = [*zip(CHAIN, BOUNDARIES, strict=True)]
    place = {key: root / str(i) / "name" / "id" for i, key in enumerate(left)}
    phases: list[tuple[int, dict[tuple[str, str], Task]]] = [(count, {}) for count in PHASES]
    for count, tasks in phases:
        for key, parts in left.items():
            if parts and LAYOUTS[parts[0][0]][0] == count:
                layout, until = parts.pop(0)
                words = [*COMMON, *RUNS[key[0]][0], *LAYOUTS[layout][1], *WORKERS.get(layout, [])]
                tasks[key] = task("lanes_run", place[key], *words, until=until)
    assert not any(left.values())
    done = by_name(root, *phases)
    return {
        key: {"tensors": stored(str(folder))["tensors"], "numbers": metrics_of(folder),
              "ranks": [phase[key] for phase in done if key in phase]}
        for key, folder in place.items()
    }  # fmt: skip


@pytest.mark.parametrize(("run", "name"), CASES)
def test_every_layout_gives_the_same_bits(found, run, name):
    expected, actual = found[run, "none"], found[run, name]
    assert len(expected["tensors"]) > 4 and len(expected["numbers"]) > 3
    assert actual["tensors"] == expected["tensors"]
    assert actual["numbers"] == expected["numbers"]
    last, straight = actual["ranks"][-1], expected["ranks"][-1][0]
    for rank in last:
        assert rank["norms"] == straight["norms"][-len(rank["norms"]) :]
        assert rank["rng"] == straight["rng"] and rank["skipped"] == straight["skipped"]


def test_the_runs_do_what_their_rows_say(found):
    hooks = found["mlp, hooks", "none"]["numbers"]
    assert any(row.get("spikes/skipped") for row in hooks), "no update was skipped"
    assert any(key.startswith("gradients/") for row in hooks for key in row)
    assert any(name.startswith("ema/") for name in found["mlp, hooks", "none"]["tensors"])
    norms = found["gpt, dropout", "none"]["ranks"][0][0]["norms"]
    assert len(norms) == 6 and len(set(norms)) == 6
    assert found["gpt, fp16", "none"]["ranks"][0][0]["skipped"] > 0, "no scale was too large"
    assert found["gpt, bf16, epochs", "none"]["numbers"][-1]["epoch"] >= 2
    validated = {key for row in found["stream, validation sets", "none"]["numbers"] for key in row}
    assert {"val/a/loss", "val/b/loss"} <= validated
    sources = {key for row in found["mixture", "none"]["numbers"] for key in row}
    assert {"train/loss/a", "train/loss/b", "val/a/loss"} <= sources
