"""Models that do or do not separate the documents of a packed row."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from launcher.train.packing import keeps_documents_apart


class Own(nn.Module):
    """A model of a user's own: each token and a share of those before it. Its records have no
    logits."""

    def __init__(self, share: float, by_document: bool):
        super().__init__()
        self.share, self.by_document = share, by_document
        self.embedding = nn.Embedding(16, 16)

    def forward(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        document = (batch["position_ids"] == 0).cumsum(1)
        seen = torch.ones(document.shape[1], document.shape[1]).tril(-1)
        if self.by_document:
            seen = seen * (document[:, :, None] == document[:, None, :])
        x = self.embedding(batch["input_ids"])
        logits = x + self.share * (seen @ x)
        return (
            nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
            ),
            {},
        )


@pytest.mark.parametrize(
    ("share", "by_document", "expected"),
    [(1.0, True, True), (1.0, False, False), (1e-3, False, False), (0.0, False, True)],
)
def test_the_loss_is_compared_where_there_are_no_logits(share, by_document, expected):
    torch.manual_seed(0)
    with torch.no_grad():
        assert keeps_documents_apart(Own(share, by_document), 2, 16, 16) is expected
