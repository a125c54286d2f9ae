"""Measures, before training, whether a model separates the documents of a packed row."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from launcher.data.encoding import IGNORED
from launcher.data.rows import PackedDataset
from launcher.errors import ConfigError
from launcher.hooks.evaluation_mode import evaluating
from launcher.hooks.view import LossAndRecords
from launcher.process.ranks import broadcast
from launcher.train.composed import Trainer

Forward = Callable[[object], LossAndRecords]
MAX_TESTED_LEN = 16
"""Tokens of a measured row. The boundary matters, not the length."""


def check_packing(trainer: Trainer, dataset: object, micro_batch_size: int) -> None:
    """Reject packed rows for a model in which a document depends on the one before it in the row.

    All ranks call it. Training does not change, neither by weights nor by random numbers.
    """
    if not isinstance(dataset, PackedDataset) or not dataset.pack:
        return
    outer = trainer.unwrapped_model
    inner = dict(outer.named_children()).get("model", outer)
    name = type(inner).__name__
    # Kernels that separate documents may do so for a single row only.
    measured = (
        min(2, micro_batch_size),
        min(MAX_TESTED_LEN, dataset.seq_len),
        dataset.store.meta["vocab_size"],
    )
    with evaluating(trainer), trainer.strategy.forward_context():
        keeps_apart = broadcast(keeps_documents_apart(trainer.forward, *measured, trainer.device))
    if not keeps_apart:
        raise ConfigError(
            f"data.pack=true: in {name} the documents of a row see each other, whatever"
            " position_ids say; set data.pack=false for one document per row."
        )


def keeps_documents_apart(
    forward: Forward, rows: int, length: int, vocab_size: int, device: torch.device | str = "cpu"
) -> bool:
    """Return whether a row's first document leaves the logits of its second unchanged.

    If the records have no `logits`, the loss of one token is compared.
    """
    half, other = length // 2, max(1, vocab_size // 2)
    tokens = torch.arange(length) % vocab_size
    first = tokens[:half]
    second = tokens[half:]
    positions = torch.cat([torch.arange(half), torch.arange(length - half)])

    def measure(before: Tensor, document: Tensor) -> Tensor:
        ids = torch.cat([before, document])
        labels = torch.full_like(ids, IGNORED)
        labels[half + 2 : half + 3] = ids[half + 2 : half + 3]
        row = {"input_ids": ids, "position_ids": positions, "labels": labels}
        return _of_second(
            *forward({key: value.repeat(rows, 1).to(device) for key, value in row.items()}), half
        )

    expected = measure(first, second)
    difference = (measure((first + other) % vocab_size, second) - expected).abs().max().item()
    # A sum in another order changes the last digits.
    share = 1e-3 if expected.dtype in (torch.bfloat16, torch.float16) else 1e-5
    return difference <= share * expected.abs().max().item()


def _of_second(loss: Tensor | None, records: Mapping[str, object], half: int) -> Tensor:
    """Return the second document's logits [rows, tokens, vocabulary], or the loss."""
    logits = records.get("logits")
    if isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[1] > half:
        return logits[:, half:]
    assert loss is not None
    return loss
