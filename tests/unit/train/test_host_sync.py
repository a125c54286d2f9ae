"""Between two intervals a step reads no value of a tensor: on an accelerator the host would wait
for the device."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from launcher import (
    BaseTrainer,
    CheckpointingHook,
    EvaluationHook,
    JsonlHook,
    LoggingHook,
    ProgressHook,
)

READS = {
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "equal",
    "masked_select",
    "unique_dim",
    "_unique2",
}
"""Operations whose result the host needs; `item`, `tolist`, `float`, `bool` and `int` are
`_local_scalar_dense`."""
FIRST, LAST = 22, 29
"""Steps at which no interval of 10 is due."""


class Reads(TorchDispatchMode):
    """The reading operations while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if name in READS:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


class Watched(BaseTrainer):
    """The loop itself reads the gradient's norm on the CPU, where it costs nothing. On CUDA the
    device decides."""

    def build_data_loader(self) -> Iterator[torch.Tensor]:
        self.reads = Reads()
        for step in range(1, 40):
            if step == FIRST:
                self.reads.__enter__()
            if step == LAST:
                self.reads.__exit__(None, None, None)
            yield torch.ones(2, 4, device=self.device)

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 1, device=self.device)

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=0.1, fused=True)

    def build_hooks(self) -> list[Any]:
        return [
            ProgressHook(interval=10), LoggingHook(interval=10),
            EvaluationHook(interval=10, at_start=False),
            CheckpointingHook(interval=10, asynchronous=False), JsonlHook(),
        ]  # fmt: skip

    def forward(self, input: torch.Tensor) -> Any:
        loss = self.model(input).mean()
        return loss, {"accuracy": loss.detach()}


def test_a_step_reads_the_norm_alone(tmp_path):
    trainer = Watched(max_steps=35, grad_clip=1.0, device="cpu", workspace=tmp_path)
    trainer.train()
    assert trainer.reads.names == ["_local_scalar_dense"] * (LAST - FIRST)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_step_on_a_gpu_does_not_wait(tmp_path):
    class Strict(Watched):
        def build_data_loader(self) -> Iterator[torch.Tensor]:
            for step, batch in enumerate(super().build_data_loader(), 1):
                if step in (FIRST, LAST):
                    torch.cuda.set_sync_debug_mode("error" if step == FIRST else "default")
                yield batch

    trainer = Strict(max_steps=35, grad_clip=1.0, device="cuda", workspace=tmp_path)
    try:
        trainer.train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
