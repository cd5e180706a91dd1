"""GPT and its recurrent forms, the baselines of NRGPT (NRGPT, appendix F.1).

Legend: B sequences, T tokens, J tokens that a query sees, V vocabulary, P block length, D width, H heads, Y = D/H, M
hidden width, S layers or steps.
"""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.errors import at_least
from paper_repro.models.common import (
    NORM_EPS,
    KeyValueCache,
    PositionalLanguageModel,
    check_dropout,
    check_heads,
    linear,
)

try:
    from paper_repro.kernels.causal_attention import causal_attention
except ImportError:  # the same, slower
    from paper_repro.models.common import causal_attention  # type: ignore[assignment]


class CausalSelfAttention(nn.Module):
    """softmax(q k / sqrt(Y)) v for B <= A, heads concatenated, then a linear map (NRGPT, equations 8 to 10).

    Query, key and value maps have no bias, the output map has one; dropout on the probabilities and on the output.
    The baselines see the token itself, whatever mask NRGPT has (the authors' code; the paper writes B < A for both).
    """

    def __init__(self, width: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads = check_heads(width, num_heads)
        self.dropout = check_dropout(dropout)
        self.query_key_value = linear(width, 3 * width, bias=False)
        self.output = linear(width, width)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        heads = self.query_key_value(x).unflatten(-1, (3, self.num_heads, -1))  # (B, T, 3, H, Y)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, Y)
        dropout = self.dropout if self.training else 0.0
        if cache is None:
            read = causal_attention(query, key, value, dropout=dropout)  # (B, H, T, Y)
        else:
            read = cache.attend(causal_attention, query, key, value)
        joined = read.transpose(1, 2).flatten(2)  # (B, T, D)
        return functional.dropout(self.output(joined), self.dropout, self.training)


class FeedForward(nn.Module):
    """W2 ReLU(W1 x + b1) + b2, then dropout; (..., D) -> (..., D).

    ReLU, not nanoGPT's GELU: the authors' code.
    """

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = check_dropout(dropout)
        self.up = linear(at_least("width", width), at_least("hidden", hidden))
        self.down = linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.up(x))  # (B, T, M)
        return functional.dropout(self.down(hidden), self.dropout, self.training)


class SerialBlock(nn.Module):
    """x <- x + AT(LN1 x), then x <- x + FF(LN2 x) (NRGPT, equation 4); (B, T, D) -> (B, T, D).

    As printed, equation 4 leaves AT(LN1 x) out of the outer sum; the authors' code has both residual branches.
    """

    def __init__(self, width: int, num_heads: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.attention = CausalSelfAttention(width, num_heads, dropout)
        self.feed_forward_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.feed_forward = FeedForward(width, hidden, dropout)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cache)  # (B, T, D)
        return x + self.feed_forward(self.feed_forward_norm(x))


class ParallelBlock(SerialBlock):
    """x <- x + AT(LN1 x) + FF(LN2 x) (NRGPT, equation 5); (B, T, D) -> (B, T, D).

    The paper writes one g for both branches, the authors' code has a LayerNorm for each.
    """

    def forward(self, x: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        return x + self.attention(self.attention_norm(x), cache) + self.feed_forward(self.feed_forward_norm(x))


class GPT(PositionalLanguageModel):
    """``num_layers`` serial blocks with weights of their own, the "GPT" of NRGPT's tables.

    H, S and M / D are num_heads, num_layers and hidden_factor; dropout is on attention probabilities and both branches.
    """

    def __init__(
        self,
        vocabulary_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden_factor: int = 4,
        dropout: float = 0.0,
        tie_output: bool = False,
    ) -> None:
        super().__init__(vocabulary_size, block_length, width, tie_output)
        hidden = at_least("hidden_factor", hidden_factor) * width
        self.blocks = nn.ModuleList(
            SerialBlock(width, num_heads, hidden, dropout) for _ in range(at_least("num_layers", num_layers))
        )

    has_cache = True

    def layers(self, cache: KeyValueCache | None = None) -> Sequence[Callable[[Tensor], Tensor]]:
        return tuple(self.blocks) if cache is None else [partial(block, cache=cache) for block in self.blocks]


class RGPT(PositionalLanguageModel):
    """One serial block applied S = ``num_steps`` times: "RGPT", the authors' GPT_Rec; see GPT."""

    block_class: type[SerialBlock] = SerialBlock
    has_cache = True

    def __init__(
        self,
        vocabulary_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_steps: int,
        hidden_factor: int = 4,
        dropout: float = 0.0,
        tie_output: bool = False,
    ) -> None:
        super().__init__(vocabulary_size, block_length, width, tie_output)
        self.num_steps = at_least("num_steps", num_steps)
        self.block = self.block_class(width, num_heads, at_least("hidden_factor", hidden_factor) * width, dropout)

    def layers(self, cache: KeyValueCache | None = None) -> Sequence[Callable[[Tensor], Tensor]]:
        return (self.block if cache is None else partial(self.block, cache=cache),) * self.num_steps


class RGPTParallel(RGPT):
    """One parallel block applied ``num_steps`` times: "RGPT-parallel", the authors' GPT_Rec_parallel."""

    block_class = ParallelBlock
