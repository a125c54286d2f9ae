"""The loop by subclass: order, accumulation, absent losses, non-finite gradients, epochs, events,
state."""

import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from launcher import BaseHook, BaseTrainer, CheckpointingHook, FunctionHook, LossNoneWarning
from launcher.errors import TrainingError


class Toy(BaseTrainer):
    """A linear model on given batches [B, 2] -> [B, 1]."""

    def __init__(
        self,
        batches: Iterable[Any],
        hooks: list[BaseHook] | None = None,
        decay: bool = False,
        **settings: Any,
    ):
        super().__init__(device="cpu", **settings)
        self.batches, self.given_hooks, self.decay = batches, hooks or [], decay
        self.seen: list[Any] = []

    def build_data_loader(self) -> Iterable[Any]:
        return self.batches

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(2, 1)

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def build_lr_scheduler(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        decay = torch.optim.lr_scheduler.LambdaLR
        return decay(self.optimizer, lambda s: 1 / (1 + s)) if self.decay else None

    def build_hooks(self) -> list[BaseHook]:
        return self.given_hooks

    def forward(self, input: Any) -> tuple[torch.Tensor | None, dict[str, Any]]:
        self.seen.append(input)
        if input is None:
            return None, {}
        loss = self.model(input).pow(2).mean()
        return loss, {"nested": {"size": len(input)}}


GOOD = [torch.ones(4, 2) * (i + 1) for i in range(3)]
BAD = torch.full((4, 2), float("nan"))


def test_build_order_and_step_info():
    trainer = Toy(GOOD, max_steps=2, grad_clip=1.0, gradient_accumulation_steps=3)
    order = ["data_loader", "model", "optimizer", "lr_scheduler", "grad_scaler", "hooks"]
    calls = []

    def noted(name, build):
        return lambda: calls.append(name) or build()

    for name in order:
        setattr(trainer, f"build_{name}", noted(name, getattr(trainer, f"build_{name}")))
    trainer.train()
    assert calls == order
    info = trainer.step_info
    assert len(info["loss"]) == len(info["records"]) == len(info["data_time"]) == 3
    assert info["non_finite_grad_retry_count"] == 0
    assert info["grad_norm"] > 0 and info["step_time"] > 0
    assert not info["loss"][0].requires_grad


def test_accumulation_equals_the_whole_batch():
    whole = Toy([torch.cat([GOOD[0], GOOD[1]])], max_steps=1)
    parts = Toy(GOOD[:2], max_steps=1, gradient_accumulation_steps=2)
    whole.train(), parts.train()
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_finite_loader_starts_again_within_a_step():
    trainer = Toy(GOOD, max_steps=4, gradient_accumulation_steps=2)
    trainer.train()
    assert [int(batch[0, 0]) for batch in trainer.seen] == [1, 2, 3, 1, 2, 3, 1, 2], (
        "no partial accumulation is dropped"
    )
    assert trainer.state.epoch == 2


def test_a_batch_without_a_loss_is_skipped_so_often():
    trainer = Toy([None, GOOD[0], None, GOOD[1]], max_steps=1, gradient_accumulation_steps=2)
    trainer.train()
    assert len(trainer.seen) == 4 and len(trainer.step_info["loss"]) == 2
    trainer = Toy([None], max_steps=1, max_consecutive_none_losses=7)
    with pytest.raises(TrainingError, match="max_consecutive_none_losses=7"):
        trainer.train()
    assert len(trainer.seen) == 8
    with pytest.raises(TrainingError, match="empty"):
        Toy([], max_steps=1).train()


class MyDDP(nn.parallel.DistributedDataParallel):
    """A user's own."""


@pytest.fixture
def process_group():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("wrap", "warns"), [(MyDDP, True), (lambda m: compiled(MyDDP(m)), True), (compiled, False)]
)
@pytest.mark.usefixtures("process_group")
def test_loss_none_warns_under_ddp_alone(wrap, warns):
    class Wrapped(Toy):
        def build_model(self) -> nn.Module:
            return wrap(super().build_model())

    trainer = Wrapped([None, GOOD[0]], max_steps=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    assert any(issubclass(warning.category, LossNoneWarning) for warning in caught) is warns
    assert type(trainer.unwrapped_model) is nn.Linear


@pytest.mark.parametrize("wrap", [MyDDP, lambda model: compiled(MyDDP(model))])
@pytest.mark.parametrize(("no_sync_accumulate", "expected"), [(True, 2), (False, 6)])
@pytest.mark.usefixtures("process_group")
def test_ranks_exchange_gradients_as_often_as_asked(wrap, no_sync_accumulate, expected):
    exchanges = []

    def exchange(
        state: object, bucket: torch.distributed.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        exchanges.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    class Wrapped(Toy):
        def build_model(self) -> nn.Module:
            model = wrap(super().build_model())
            getattr(model, "_orig_mod", model).register_comm_hook(None, exchange)
            return model

    settings = {"gradient_accumulation_steps": 3, "no_sync_accumulate": no_sync_accumulate}
    Wrapped([GOOD[0]] * 6, max_steps=2, **settings).train()
    assert len(exchanges) == expected


@pytest.mark.parametrize("accumulation", [1, 2])
def test_non_finite_gradients_retry_with_new_batches(accumulation):
    batches = [BAD, *[GOOD[0]] * (accumulation - 1), BAD, *[GOOD[0]] * (accumulation - 1), *GOOD]
    trainer = Toy(
        batches,
        max_steps=1,
        max_non_finite_grad_retries=2,
        gradient_accumulation_steps=accumulation,
        decay=True,
    )
    trainer.train()
    assert trainer.step_info["non_finite_grad_retry_count"] == 2
    assert len(trainer.step_info["loss"]) == accumulation
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    with pytest.raises(RuntimeError, match="after 1 of 1 retries"):
        Toy([BAD], max_steps=1, max_non_finite_grad_retries=1).train()


@pytest.mark.parametrize("mixed_precision", [None, "bf16", "fp16"])
def test_a_non_finite_step_is_skipped_and_counted(mixed_precision):
    trainer = Toy([GOOD[0], BAD, GOOD[1]], max_steps=3, decay=True, mixed_precision=mixed_precision)
    trainer.train()
    skipped = trainer.state.skipped_steps
    assert skipped == 1 if mixed_precision != "fp16" else skipped >= 1, (
        "fp16 also skips while it looks for its scale"
    )
    assert trainer.state.skipped_in_row == 0 and trainer.step == 3
    assert trainer.lr_scheduler is not None
    assert trainer.lr_scheduler.last_epoch == 3 - skipped, (
        "the schedule does not advance on a skipped step"
    )
    assert all(p.isfinite().all() for p in trainer.model.parameters())


def test_skips_in_a_row_are_bounded_and_seldom_logged(caplog):
    with pytest.raises(TrainingError, match="max_consecutive_skipped_steps=4"):
        Toy(
            [GOOD[0], BAD, BAD, BAD, BAD, BAD], max_steps=50, max_consecutive_skipped_steps=4
        ).train()
    assert [line.split("(")[-1] for line in caplog.messages] == [
        "1 in a row).",
        "2 in a row).",
        "4 in a row).",
    ]


@pytest.mark.parametrize("mixed_precision", [None, "fp16"])
def test_hooks_see_unclipped_gradients_in_list_order(mixed_precision):
    log: list[tuple[str, bool]] = []

    def noting(name: str) -> BaseHook:
        def note(trainer: Any) -> None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in trainer.model.parameters()])
            log.append((name, bool(norm > trainer.grad_clip)))

        return FunctionHook(on_before_optimizer_step=note)

    hooks = [noting("a"), noting("b")]
    Toy(GOOD, hooks, max_steps=1, grad_clip=1e-3, mixed_precision=mixed_precision).train()
    assert log == [("a", True), ("b", True)]


def test_unwrap():
    trainer = Toy(GOOD, max_steps=1)
    trainer.build()
    averaged = torch.optim.swa_utils.AveragedModel(nn.DataParallel(trainer.model))
    assert type(trainer.unwrap(averaged)) is nn.Linear
    assert trainer.unwrapped_model is trainer.model


def test_before_optimizer_step_is_called_once_a_step_not_once_an_attempt():
    finite: list[bool] = []
    hook = FunctionHook(
        on_before_optimizer_step=lambda trainer: finite.append(
            bool(trainer.model.weight.grad.isfinite().all())
        )
    )
    Toy([GOOD[0], BAD, BAD, GOOD[1]], [hook], max_steps=2, max_non_finite_grad_retries=2).train()
    assert finite == [True, True]


def test_a_pause_takes_the_next_step_that_is_not_skipped(tmp_path):
    """A state whose update was skipped is not saved, so the run cannot pause there."""
    batches = [*GOOD, torch.full((4, 2), float("nan")), *GOOD, *GOOD]

    def trainer(**settings):
        return Toy(
            batches, [CheckpointingHook(interval=100)], max_steps=6, workspace=tmp_path, **settings
        )

    first = trainer(pause_at=4)
    first.train()
    assert (first.is_paused, first.step) == (True, 5)
    again = trainer(pause_at=5)
    again.train()
    assert (again.is_paused, again.step, again.seen) == (True, 5, [])
    last = trainer(pause_at=6)
    last.train()
    assert (last.is_paused, last.step) == (False, 6)


def test_a_paused_trainer_trains_on():
    trainer = Toy(GOOD, max_steps=4, pause_at=2)
    trainer.train()
    assert trainer.is_paused and trainer.step == 2
    trainer.pause_at = None
    trainer.train()
    assert not trainer.is_paused and trainer.step == 4


@pytest.mark.parametrize(
    "name", ["max_steps", "grad_clip", "max_consecutive_skipped_steps", "pause_at"]
)
def test_an_argument_out_of_bounds_is_rejected(name):
    with pytest.raises(ValueError, match=f"^BaseTrainer: {name}=-1: should be"):
        BaseTrainer(**{"max_steps": 1, name: -1})


def test_accumulators_of_gradients_live_from_step_to_step_and_end_with_training():
    marks = []

    class Marking(Toy):
        def accumulator(self) -> Any:
            weight: Any = self.model.weight
            return weight.view_as(weight).grad_fn.next_functions[0][0]

        def forward(self, input: Any) -> tuple[torch.Tensor | None, dict[str, Any]]:
            output = super().forward(input)
            metadata = self.accumulator().metadata
            marks.append("mark" in metadata)
            metadata["mark"] = True
            return output

    trainer = Marking(GOOD, max_steps=2, gradient_accumulation_steps=2)
    trainer.train()
    assert marks == [False, True, True, True]
    assert "mark" not in trainer.accumulator().metadata
