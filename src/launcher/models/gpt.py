"""A decoder-only transformer over tokens, with the architecture of Llama."""

import math

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
    outputs,
    same_document,
)
from launcher.models.chunked_loss import OutputLayer, chunk_size, loss_by_chunks
from launcher.types import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval


class GPT(Model):
    """A GPT with pre-norm blocks of causal attention and a gated feed-forward layer, no biases.

    It has the architecture of Llama (Touvron et al. 2023, arXiv:2302.13971): RMSNorm (Zhang and
    Sennrich 2019, arXiv:1910.07467), rotary positions (Su et al. 2021, arXiv:2104.09864), SwiGLU
    (Shazeer 2020, arXiv:2002.05202), grouped-query attention (Ainslie et al. 2023,
    arXiv:2305.13245), and an output layer tied to the embedding (Press and Wolf 2017,
    arXiv:1608.05859).

    Args:
        vocab_size: number of token values.
        seq_len: longest input, in tokens.
        dim: width of the residual stream.
        num_layers: blocks.
        num_heads: attention heads, which divide `dim` into even head sizes.
        num_kv_heads: heads of keys and values, each shared by num_heads / num_kv_heads query heads.
            Default None: num_heads.
        ffn_dim: hidden width of the feed-forward layer. Default None: 8/3 dim, rounded up to
            `multiple_of`. Its three matrices then have as many parameters as two of width 4 dim.
        multiple_of: see `ffn_dim`.
        dropout: dropout of the embedding, the attention weights and each block's addition to the
            residual stream (Radford et al. 2018). The fastest attention kernels do not support
            dropout, so any dropout costs time.
        rope_theta: base of the rotary wavelengths.
        tie_embeddings: the output layer uses the embedding's matrix.
        norm_eps: added to the mean square inside RMSNorm.
        logits_chunk: a micro-batch with more tokens computes its logits, loss and their gradients
            for this many tokens at a time. Default None: as many as have 2^28 logits, rounded down
            to a power of two; 4096 for a vocabulary of 50,304. With 0, for all tokens at once.
    Raises:
        ConfigError: the sizes do not fit each other.
    """

    later_keys = ("logits_chunk",)
    is_language_model = True

    def __init__(
        self,
        vocab_size: PositiveInt,
        seq_len: PositiveInt,
        dim: PositiveInt = 128,
        num_layers: PositiveInt = 4,
        num_heads: PositiveInt = 4,
        num_kv_heads: PositiveInt | None = None,
        ffn_dim: PositiveInt | None = None,
        multiple_of: PositiveInt = 32,
        dropout: UnitInterval = 0.0,
        rope_theta: PositiveFloat = 10000.0,
        tie_embeddings: bool = True,
        norm_eps: PositiveFloat = 1e-5,
        logits_chunk: NonNegativeInt | None = None,
    ):
        super().__init__()
        num_kv_heads = num_kv_heads or num_heads
        self._check_heads(dim, num_heads, num_kv_heads)
        self.seq_len = seq_len
        self.num_layers = num_layers
        self.dropout = dropout
        self.head_dim, self.rope_theta = dim // num_heads, rope_theta
        if ffn_dim is None:
            ffn_dim = multiple_of * math.ceil(8 * dim / (3 * multiple_of))
        self.embedding = nn.Embedding(vocab_size, dim)
        self.blocks = nn.ModuleList(
            Block(dim, num_heads, num_kv_heads, ffn_dim, dropout, norm_eps)
            for _ in range(num_layers)
        )
        self.norm = nn.RMSNorm(dim, eps=norm_eps)
        # With tied embeddings, `forward` uses the embedding's matrix. A second parameter that
        # shares its memory would be separated by `to_empty`, and would be stored and sharded twice.
        self.head = None if tie_embeddings else OutputLayer(dim, vocab_size)
        self.logits_chunk = chunk_size(vocab_size, logits_chunk)
        table = torch.empty(seq_len, self.head_dim)
        self.register_buffer("cos", table, persistent=False)
        self.register_buffer("sin", table.clone(), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    @staticmethod
    def _check_heads(dim: int, num_heads: int, num_kv_heads: int) -> None:
        if dim % (2 * num_heads):
            raise ConfigError(
                f"model.num_heads={num_heads}: should divide model.dim={dim} into heads of even"
                f" size; e.g. model.dim={2 * num_heads * math.ceil(dim / (2 * num_heads))}."
            )
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"model.num_kv_heads={num_kv_heads}: should divide model.num_heads={num_heads};"
                f" e.g. model.num_kv_heads={math.gcd(num_heads, num_kv_heads)}."
            )

    def forward(self, batch: TokenBatch) -> tuple[Tensor, Records]:
        """Compute the mean cross entropy in nats per token, and `accuracy` in evaluation.

        Args:
            batch: input [B, T] int64 with T <= seq_len, and target [B, T] int64, the next tokens.
                Targets of -100 do not count. It may be a mapping with `input_ids` and `labels`,
                both [B, T], and optionally `position_ids`, which start at 0 for each document, so
                that documents do not see each other.
        """
        input, target = next_tokens(batch)
        x = self.hidden(input, same_document(batch))
        if 0 < self.logits_chunk < target.numel():
            loss, records = self._loss_by_chunks(x.flatten(0, 1), target.flatten())
            if self.training or not self.needs_outputs:
                return loss, records
            return loss, records | outputs(self, self._scores(x), target)
        logits = self._scores(x)
        loss = cross_entropy(logits.float(), target)
        return loss, {} if self.training else class_records(self, logits, target)

    def _loss_by_chunks(self, x: Tensor, target: Tensor) -> tuple[Tensor, Records]:
        size = self.logits_chunk
        if self.head is None:
            return loss_by_chunks(x, self.embedding.weight, target, size, not self.training)
        loss, records = self.head(x, target, size)
        return loss, records

    def _scores(self, x: Tensor) -> Tensor:
        scores: Tensor = F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return scores

    def num_targets(self, batch: TokenBatch) -> Tensor:
        return count_targets(next_tokens(batch)[1])

    def logits(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute scores of the next token: input [B, T] int64 -> [B, T, vocab_size].

        `mask` are the tokens that each token sees, bool [B, 1, T, T]; None: all earlier ones.
        """
        return self._scores(self.hidden(input, mask))

    def hidden(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the input of the output layer, [B, T, dim]."""
        length = input.shape[1]
        if length > self.seq_len:
            raise ValueError(f"The input has {length} tokens, and model.seq_len is {self.seq_len}.")
        cos = self.cos[:length]
        sin = self.sin[:length]
        x = F.dropout(self.embedding(input), self.dropout, self.training)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        normalized: Tensor = self.norm(x)
        return normalized

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialize by GPT-2's rule (Radford et al. 2019, section 2.3, and its code).

        Weights are normal with a standard deviation of 0.02. The two matrices of a block that write
        into the residual stream have 0.02 / sqrt(2 num_layers), so that the stream's variance does
        not grow with depth. Norms are 1.
        """
        nn.init.normal_(self.embedding.weight, std=0.02)
        for block in self.blocks:
            block.init_weights(0.02, 0.02 / math.sqrt(2 * self.num_layers))  # type: ignore[operator]
        nn.init.ones_(self.norm.weight)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=0.02)
        cos, sin = rope_table(self.seq_len, self.head_dim, self.rope_theta)
        self.cos.copy_(cos)
        self.sin.copy_(sin)

    def shard_units(self) -> list[nn.Module]:
        return list(self.blocks)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)). x [B, T, dim]."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_kv_heads: int,
        ffn_dim: int,
        dropout: float,
        norm_eps: float,
    ):
        super().__init__()
        self.dropout = dropout
        self.attention_norm = nn.RMSNorm(dim, eps=norm_eps)
        self.attention = Attention(dim, num_heads, num_kv_heads, dropout)
        self.ffn_norm = nn.RMSNorm(dim, eps=norm_eps)
        self.ffn = SwiGLU(dim, ffn_dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + F.dropout(
            self.attention(self.attention_norm(x), cos, sin, mask), self.dropout, self.training
        )
        return x + F.dropout(self.ffn(self.ffn_norm(x)), self.dropout, self.training)

    def init_weights(self, std: float, residual_std: float) -> None:
        attention = self.attention
        ffn = self.ffn
        for matrix in (attention.q, attention.k, attention.v, ffn.gate, ffn.up):
            nn.init.normal_(matrix.weight, std=std)
        for matrix in (attention.out, ffn.down):
            nn.init.normal_(matrix.weight, std=residual_std)
        for norm in (self.attention_norm, self.ffn_norm):
            nn.init.ones_(norm.weight)


class Attention(nn.Module):
    def __init__(self, dim: int, num_heads: int, num_kv_heads: int, dropout: float):
        super().__init__()
        self.head_dim = dim // num_heads
        self.dropout = dropout
        self.grouped = num_kv_heads != num_heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [B, T, dim], cos and sin [T, head_dim] -> [B, T, dim]."""
        heads = (*x.shape[:2], -1, self.head_dim)
        q = rotate(self.q(x).view(heads).transpose(1, 2), cos, sin)
        k = rotate(self.k(x).view(heads).transpose(1, 2), cos, sin)
        v = self.v(x).view(heads).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None,
            enable_gqa=self.grouped,
        )
        outputs: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return outputs


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, dim: int, ffn_dim: int):
        super().__init__()
        self.gate = nn.Linear(dim, ffn_dim, bias=False)
        self.up = nn.Linear(dim, ffn_dim, bias=False)
        self.down = nn.Linear(ffn_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return outputs


def rope_table(seq_len: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return the rotations of all positions, each [seq_len, head_dim] float32, on the CPU.

    Frequency i of head_dim / 2 is theta^(-2i / head_dim) (Su et al. 2021, section 3.2.2). The first
    half of the sines is negated, for `rotate`.
    """
    # Tables are computed in float64 and on the CPU, so that every device has the same ones.
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
    angle = torch.outer(torch.arange(seq_len, dtype=torch.float64, device="cpu"), theta**-exponent)
    cos = angle.cos()
    sin = angle.sin()
    return torch.cat((cos, cos), dim=1).float(), torch.cat((-sin, sin), dim=1).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pair (x_i, x_(i + head_dim/2)) by its position's angle: [B, heads, T, head_dim]."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return (x * cos + swapped * sin).type_as(x)
