"""The sum in a tree, and the norm by rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from launcher.config.schema.lane_rules import lane_issues
from launcher.config.settings import TrainerSettings
from launcher.errors import ConfigError, TrainingError
from launcher.optim.precision import Precision
from launcher.process.lanes import Lanes
from launcher.strategies.fsdp import FsdpStrategy
from launcher.strategies.lane_sums import (
    LaneSums,
    PartialSums,
    Unchanged,
    check_model,
    check_optimizer,
    tree_sum,
)
from launcher.strategies.missing_loss import check_missing_loss
from launcher.strategies.none import NoStrategy
from launcher.strategies.norms import row_norm, row_squares, total_norm
from launcher.strategies.step import StepPlan
from launcher.train.build import set_up_strategy
from support.composition import composed, run_of


@settings(max_examples=40)
@given(levels=st.integers(0, 4), absent=st.sets(st.integers(0, 15)), is_low=st.booleans())
def test_gradients_of_autograd_are_added_as_the_tree_does(levels, absent, is_low):
    count, dtype = 1 << levels, torch.bfloat16 if is_low else torch.float32
    used, other = nn.Parameter(torch.ones(9, dtype=dtype)), nn.Parameter(torch.ones(1))
    factors = torch.randn(count, 9, generator=torch.Generator().manual_seed(count)).to(dtype)
    sums, parameters = LaneSums(count), [used, other]
    for _ in range(2):  # the second time begins anew
        for lane in range(count):
            loss = other.sum() if lane in absent else (used * factors[lane]).sum() + other.sum()
            loss.backward()
            sums.add(parameters)
        present = factors.clone()
        present[[*(absent & set(range(count)))]] = -0.0
        if absent >= set(range(count)):
            assert used.grad is None
        else:
            assert used.grad is not None and torch.equal(used.grad, tree_sum(present))
        assert other.grad is not None and float(other.grad) == count
        used.grad = other.grad = None


@settings(max_examples=40)
@given(
    lanes=st.integers(0, 5),
    ranks=st.integers(0, 5),
    replicas=st.integers(0, 5),
    seed=st.integers(0, 99),
    absent=st.sets(st.integers(0, 31)),
)
def test_every_layout_adds_the_same_numbers(lanes, ranks, replicas, seed, absent):
    """The ranks' work, one rank after the other: sums over shards with each lane, their sums in
    each rank, and the sum over replicas."""
    count, ranks = 1 << lanes, min(ranks, lanes)
    world, copies = 1 << ranks, 1 << min(replicas, ranks)
    gradients = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    for lane in absent & set(range(count)):
        gradients[lane] = -0.0
    shards, layout = world // copies, Lanes(count, 0, 0, world, copies)
    of_replicas = []
    for first in range(0, world, shards):
        sums = PartialSums(count // world)
        total: list[torch.Tensor | None] | None = None
        for together in zip(*(layout.of(first + i) for i in range(shards)), strict=True):
            total = sums.add([tree_sum(gradients[[*together]])])
        assert total is not None and total[0] is not None
        of_replicas.append(total[0])
    assert torch.equal(tree_sum(torch.stack(of_replicas)), tree_sum(gradients))


class Mine(NoStrategy):
    name = "mine"


def test_a_subclass_of_a_strategy_must_declare_that_it_supports_lanes():
    config = composed(["trainer.lanes=2", "data.batch_size=4", "device=cpu", "strategy=none"])
    config.strategy._target_ = f"{__name__}.Mine"
    with pytest.raises(ConfigError, match=r"lanes=2: strategy=mine .* supports_lanes=True"):
        set_up_strategy(run_of(config))


@settings(max_examples=40)
@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 70),
    cut=st.integers(0, 9),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_rows_have_the_same_sum_however_they_are_divided(rows, width, cut, dtype):
    matrix = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).to(dtype)
    whole = row_squares(matrix)
    parts = [row_squares(part) for part in (matrix[:cut], matrix[cut:])]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.allclose(whole, matrix.double().square().sum(1))


def test_the_norm_of_rows_is_the_norm():
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7))
    model.scale = nn.Parameter(torch.tensor(2.0))
    assert row_norm([[*model.parameters()]]) == 0, "no gradient"
    (model(torch.randn(3, 5)).square().sum() * model.scale).backward()
    gradients = [p.grad for p in model.parameters()]
    assert torch.allclose(
        row_norm([[*model.parameters()]]), nn.utils.get_total_norm(gradients), rtol=1e-6
    )
    model.scale.grad.fill_(math.nan)
    assert row_norm([[*model.parameters()]]).isnan()


@given(shape=st.lists(st.integers(0, 5), max_size=3), seed=st.integers(0, 9))
def test_the_norm_of_complex_gradients_is_of_their_magnitudes(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = nn.Parameter(torch.zeros(shape, dtype=torch.cfloat))
    weight.grad = torch.randn(shape, dtype=torch.cfloat, generator=generator)
    expected = weight.grad.abs().double().square().sum().sqrt().float()
    for norm in (row_norm([[weight]]), total_norm([[weight]])):
        assert not norm.is_complex()
        torch.testing.assert_close(norm, expected)
    weight.grad = weight.grad.conj()
    torch.testing.assert_close(row_norm([[weight]]), expected)


@pytest.mark.parametrize(
    "module",
    [nn.BatchNorm1d(3), nn.SyncBatchNorm(3), nn.InstanceNorm1d(3, track_running_stats=True)],
)
def test_statistics_of_the_samples_are_rejected(module):
    with pytest.raises(ConfigError, match=r"trainer.lanes: 0 .*GroupNorm or LayerNorm"):
        check_model(nn.Sequential(module))


def test_a_changed_buffer_is_named():
    model = nn.BatchNorm1d(3)
    before = Unchanged(model)
    before.check()
    model(torch.randn(4, 3))
    with pytest.raises(ConfigError, match=r"changes the model's buffer running_mean, .*lanes=null"):
        before.check()


def replace_buffer(model):
    model.buffer = model.buffer + 1


@torch.no_grad()
def change_frozen(model):
    model.weight.add_(1)


@pytest.mark.parametrize(
    ("change", "what"),
    [(replace_buffer, "buffer buffer"), (change_frozen, "frozen parameter weight")],
)
def test_another_change_of_what_the_lanes_share_is_named(change, what):
    model = nn.Linear(2, 2).requires_grad_(False)
    model.register_buffer("buffer", torch.zeros(1))
    before = Unchanged(model)
    change(model)
    with pytest.raises(ConfigError, match=rf"changes the model's {what}, .*lanes=null"):
        before.check()


def test_the_check_for_statistics_leaves_the_modes_alone():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
    model[0].train()
    check_model(model)
    assert [module.training for module in model.modules()] == [False, True, False]


def test_options_that_differ_by_the_ranks_are_rejected():
    with pytest.raises(ConfigError, match=r"use strategy\.reduce_dtype=fp32"):
        FsdpStrategy(reduce_dtype="bf16").setup(StepPlan(lanes=2), Precision("bf16"), "cpu")
    strategy = FsdpStrategy(init="host")
    strategy.setup(StepPlan(lanes=2), Precision("fp32"), "cpu")
    # There is no such device on every machine that tests.
    strategy.device = torch.device("cuda")
    with pytest.raises(ConfigError, match=r"use strategy\.init=device"):
        strategy._check_lanes()


def test_a_batch_without_a_loss_is_rejected():
    strategy = NoStrategy()
    strategy.setup(StepPlan(lanes=2), Precision("fp32"), "cpu")
    message = r"Step 3: .* no loss on rank 0.* multiplied by 0, or use trainer\.lanes=null"
    with pytest.raises(TrainingError, match=message):
        check_missing_loss(strategy, 3)


def test_sparse_gradients_and_fused_kernels_of_the_cpu_are_rejected():
    with pytest.raises(ConfigError, match="sparse gradients"):
        check_model(nn.Embedding(3, 3, sparse=True))
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), fused=True)
    with pytest.raises(ConfigError, match=r"use optimizer.fused=null"):
        check_optimizer(optimizer, torch.device("cpu"))


@pytest.mark.parametrize(
    ("settings", "batch", "ranks", "message"),
    [
        ({"lanes": 6}, 12, 1, "should be a power of two; e.g. trainer.lanes=4 or 8"),
        ({"lanes": 8}, 12, 1, "data.batch_size=12: is not divisible by trainer.lanes=8; use 8 "),
        ({"lanes": 8}, 16, 3, "trainer.lanes=8: is not divisible by 3 ranks; use 2 or 4 ranks"),
        ({"lanes": 2}, 16, 4, "trainer.lanes=2: is not divisible by 4 ranks; use 2 ranks"),
        ({"lanes": 8, "micro_batch_size": 4}, 16, 1, "a lane is a micro-batch of 2 samples"),
        ({"lanes": 8, "micro_batch_size": 2}, 16, 1, None),
        ({"lanes": 8, "compile": True}, 16, 1, "trainer.compile=true: the compiler"),
        ({"lanes": 8, "sync_every_micro_batch": True}, 16, 1, "sync_every_micro_batch=true"),
        ({"lanes": 1}, 3, 1, None),
        ({}, 3, 2, None),
    ],
)
def test_settings(settings, batch, ranks, message):
    issues = [*map(str, lane_issues(TrainerSettings(max_steps=1, **settings), batch, ranks))]
    assert (message is None) == (not issues)
    assert message is None or message in issues[0]


def test_with_lanes_the_strategy_is_not_part_of_the_id():
    def of(*overrides: str) -> str:
        return str(composed(["run.name=a", *overrides]).run.id)

    fsdp = ["strategy=fsdp", "strategy.replicate=2"]
    plain, lanes = of(), of("trainer.lanes=8")
    assert lanes == of("trainer.lanes=8", "trainer.micro_batch_size=4", *fsdp)
    assert len({plain, lanes, of("trainer.lanes=4"), of(*fsdp)}) == 4
