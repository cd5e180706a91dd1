"""GPT and its recurrent forms, the baselines of NRGPT, and the shell that all of NRGPT's models share.

Legend: B sequences, T tokens, V vocabulary, P block length, D width, H heads, Y = D/H, M hidden width, S steps.
"""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.arguments import at_least
from paper_repro.kernels.causal_attention import causal_attention
from paper_repro.models.causal import CausalLanguageModel, KeyValueCache

INIT_STD = 0.02
NORM_EPS = 1e-5


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer as every model here starts it: weight N(0, 0.02), bias zero."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=INIT_STD)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def check_heads(width: int, num_heads: int) -> int:
    """Return ``num_heads`` if it divides ``width``.

    Raises:
        ValueError: it does not, or one of them is below 1.
    """
    if at_least("width", width) % at_least("num_heads", num_heads):
        raise ValueError(f"num_heads must divide the width {width} (Y = D/H is whole), got {num_heads}")
    return num_heads


def check_dropout(dropout: float) -> float:
    """Return ``dropout`` if it is a probability below 1.

    Raises:
        ValueError: it is not.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout!r}")
    return float(dropout)


def attend_with_cache(
    cache: KeyValueCache, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None
) -> Tensor:
    """Compute causal attention (B, H, T, Y) of new tokens, all of a window or one, over them and those in the cache."""
    keys, values = cache.extend(key, value)  # (B, H, J, Y)
    if keys.shape[2] == query.shape[2]:
        return causal_attention(query, keys, values, scale)
    return functional.scaled_dot_product_attention(query, keys, values, scale=scale)  # one query sees all keys


class PositionalLanguageModel(CausalLanguageModel):
    """Token and position embeddings -> layers -> LayerNorm -> linear output (NRGPT, appendix F.1).

    No dropout on the embeddings; embeddings and matrices start N(0, 0.02).

    Args:
        vocabulary_size, block_length, width: see CausalLanguageModel.
        tie_output: share the output matrix with the token embedding, as the paper's text says; the authors' code has
            a matrix of its own, the default.  The output bias stays.

    Shape: ids (B, T) with 1 <= T <= P -> logits (B, T, V).

    Raises:
        ValueError: a size below one.
    """

    def __init__(self, vocabulary_size: int, block_length: int, width: int, tie_output: bool = False) -> None:
        super().__init__(vocabulary_size, block_length, width)
        self.token_embedding = nn.Embedding(vocabulary_size, width)
        self.position_embedding = nn.Embedding(block_length, width)
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=INIT_STD)
        self.final_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.output = linear(width, vocabulary_size)
        if tie_output:
            self.output.weight = self.token_embedding.weight

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        positions = self.position_embedding.weight[start : start + ids.shape[1]]  # (T, D)
        return super().embed(ids) + positions  # (B, T, D) + (T, D)

    def logits(self, x: Tensor) -> Tensor:
        return self.output(self.final_norm(x))  # (B, T, V)


class CausalSelfAttention(nn.Module):
    """softmax(q k / sqrt(Y)) v for B <= A, heads concatenated, then a linear map (NRGPT, equations 8 to 10).

    Query, key and value maps have no bias, the output map has one; dropout on the probabilities and on the output.
    The baselines see the token itself, whatever mask NRGPT has (the authors' code; the paper writes B < A for both).

    Shape: (B, T, D) -> (B, T, D).

    Raises:
        ValueError: ``num_heads`` does not divide ``width``, or ``dropout`` outside [0, 1).
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
            read = attend_with_cache(cache, query, key, value)
        joined = read.transpose(1, 2).flatten(2)  # (B, T, D)
        return functional.dropout(self.output(joined), self.dropout, self.training)


class FeedForward(nn.Module):
    """W2 ReLU(W1 x + b1) + b2, then dropout; (..., D) -> (..., D).

    ReLU, not nanoGPT's GELU: the authors' code.

    Raises:
        ValueError: a size below one, or ``dropout`` outside [0, 1).
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

    Raises:
        ValueError: as CausalSelfAttention and FeedForward.
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

    Args:
        vocabulary_size, block_length, width, tie_output: see PositionalLanguageModel.
        num_heads: H.
        num_layers: S.
        hidden_factor: M / D.
        dropout: on attention probabilities and on both branches.

    Shape: ids (B, T) -> logits (B, T, V).

    Raises:
        ValueError: a size below one, heads that do not divide the width, or ``dropout`` outside [0, 1).
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
    """One serial block applied ``num_steps`` times: "RGPT", the authors' GPT_Rec.

    Args:
        num_steps: S; no parameter depends on it.
        vocabulary_size, block_length, width, num_heads, hidden_factor, dropout, tie_output: see GPT.

    Shape: ids (B, T) -> logits (B, T, V).

    Raises:
        ValueError: as GPT.
    """

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
