"""Fully connected layers over features, or over the last few tokens."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.errors import ConfigError
from launcher.models.base import (
    Model,
    Records,
    TokenBatch,
    class_records,
    count_targets,
    cross_entropy,
    next_tokens,
)
from launcher.types import PositiveInt, UnitInterval


class MLP(Model):
    """Linear layers with ReLU between them, and cross entropy over classes.

    With `num_features` and `num_classes` it classifies feature vectors. With `vocab_size` it is the
    neural probabilistic language model of Bengio et al. (2003, JMLR 3, 1137-1155): the embeddings
    of the last `context` tokens, side by side, are the features, and the next token is the class.

    Args:
        vocab_size: number of token values for token data, otherwise None.
        num_features: length of a feature vector for feature data, otherwise None.
        num_classes: number of classes for feature data, otherwise None.
        hidden_dim: width of each hidden layer.
        num_layers: number of hidden layers.
        dropout: dropout after each hidden layer.
        context: number of tokens seen at once, for token data only.
        embedding_dim: width of a token's embedding, for token data only.
    Raises:
        ConfigError: the sizes describe neither kind of data, or both.
    """

    def __init__(
        self,
        vocab_size: PositiveInt | None = None,
        num_features: PositiveInt | None = None,
        num_classes: PositiveInt | None = None,
        hidden_dim: PositiveInt = 256,
        num_layers: PositiveInt = 2,
        dropout: UnitInterval = 0.0,
        context: PositiveInt = 8,
        embedding_dim: PositiveInt = 32,
    ):
        super().__init__()
        self._check_sizes(vocab_size, num_features, num_classes)
        self.context = context
        self.is_language_model = vocab_size is not None
        self.embedding = nn.Embedding(vocab_size, embedding_dim) if vocab_size else None
        width = num_features or context * embedding_dim
        self.blocks = nn.ModuleList()
        for _ in range(num_layers):
            self.blocks.append(
                nn.Sequential(nn.Linear(width, hidden_dim), nn.ReLU(), nn.Dropout(dropout))
            )
            width = hidden_dim
        self.head = nn.Linear(width, vocab_size or num_classes or 0)

    @staticmethod
    def _check_sizes(
        vocab_size: int | None, num_features: int | None, num_classes: int | None
    ) -> None:
        if vocab_size and (num_features or num_classes):
            raise ConfigError(
                f"model.vocab_size={vocab_size}: model.num_features or model.num_classes is set"
                " too; set them to null for tokens, or vocab_size to null for feature vectors."
            )
        if not vocab_size and not (num_features and num_classes):
            raise ConfigError(
                "model.vocab_size=null: MLP reads tokens (data.vocab_size) or feature vectors"
                " (data.num_features and data.num_classes), and the chosen data have neither; set"
                " them as model.*, or use data=text or data=digits."
            )

    def forward(self, batch: TokenBatch) -> tuple[Tensor, Records]:
        """Compute the mean cross entropy in nats, and `accuracy`.

        Args:
            batch: input [B, num_features] float and target [B] int64, or input [B, T] int64 and
                target [B, T] int64. Targets of -100 do not count.
        """
        input, target = next_tokens(batch)
        logits = self.logits(input)
        loss = cross_entropy(logits.float(), target)
        return loss, class_records(self, logits, target)

    def num_targets(self, batch: TokenBatch) -> Tensor:
        return count_targets(next_tokens(batch)[1])

    def logits(self, input: Tensor) -> Tensor:
        """Compute scores [B, num_classes] of features, or [B, T, vocab_size] of tokens."""
        x = input if self.embedding is None else self._windows(self.embedding(input))
        for block in self.blocks:
            x = block(x)
        outputs: Tensor = self.head(x)
        return outputs

    def _windows(self, x: Tensor) -> Tensor:
        """Return each position's last `context` embeddings: [B, T, E] -> [B, T, context * E].

        Positions before the first token are zero.
        """
        length = x.shape[1]
        padded = F.pad(x, (0, 0, self.context - 1, 0))
        parts = [padded[:, i : i + length] for i in range(self.context)]
        return torch.cat(parts, dim=-1)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialize hidden layers by He et al. 2015, arXiv:1502.01852, for ReLU.

        The output layer is initialized by Glorot and Bengio (2010). Biases are 0, and embeddings
        are standard normal, as features of unit variance.
        """
        if self.embedding is not None:
            nn.init.normal_(self.embedding.weight)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                if module is self.head:
                    nn.init.xavier_normal_(module.weight)
                else:
                    nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def shard_units(self) -> list[nn.Module]:
        return list(self.blocks)
