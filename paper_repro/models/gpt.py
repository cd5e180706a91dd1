"""GPT and its recurrent forms, the baselines of NRGPT; and what every causal language model here shares.

Legend: B sequences, T tokens, J tokens that a query sees, V vocabulary, P block length, D width, H heads, Y = D/H, M
hidden width, S layers or steps.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.errors import at_least, positive
from paper_repro.kernels.causal_attention import causal_attention


class CausalLanguageModel(nn.Module):
    """Embeddings -> layers -> logits of the next token; the logits at token A depend on the tokens up to A alone.

    A subclass says what ``token_embedding`` is, how a state becomes logits and what ``layers()`` are.

    Args:
        vocabulary_size: V.
        block_length: P, the most tokens that the model sees at once.
        width: D.

    Shape: ids (B, T) with 1 <= T <= P -> logits (B, T, V).

    Raises:
        ValueError: a size below one.
    """

    token_embedding: nn.Embedding

    def __init__(self, vocabulary_size: int, block_length: int, width: int) -> None:
        super().__init__()
        self.vocabulary_size = at_least("vocabulary_size", vocabulary_size)
        self.block_length, self.width = at_least("block_length", block_length), at_least("width", width)

    has_cache = False
    """Whether ``layers`` takes a ``KeyValueCache``."""

    def layers(self, cache: "KeyValueCache | None" = None) -> Sequence[Callable[[Tensor], Tensor]]:
        """Return the maps (B, T, D) -> (B, T, D) that are applied one after the other.

        With a cache they map the states of the tokens after those that the cache holds.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what its layers() are")

    def logits(self, x: Tensor) -> Tensor:
        """Return the next token's logits, (..., V), at final states x, (..., D)."""
        raise NotImplementedError(f"{type(self).__name__} must say what its logits() are")

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        """Return x_0 (B, T, D), the embedding of ids (B, T), of which the first is at position ``start``.

        Raises:
            ValueError: as ``embedded``.
        """
        return embedded(self.token_embedding, ids, self.block_length)

    def states(self, ids: Tensor) -> Tensor:
        """Return the states x_0 ... x_S (S + 1, B, T, D), before what ``logits`` does to the last."""
        found = [self.embed(ids)]  # (B, T, D)
        for layer in self.layers():
            found.append(layer(found[-1]))
        return torch.stack(found)  # (S + 1, B, T, D)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.final_state(ids))

    def cross_entropy(self, ids: Tensor, following: Tensor) -> Tensor:
        """Return the mean over all tokens of -log p(next token), in nats; ids and next ids (B, T)."""
        return functional.cross_entropy(self(ids).flatten(0, 1), following.flatten())

    def final_state(self, ids: Tensor) -> Tensor:
        """Return the last state x_S (B, T, D)."""
        x = self.embed(ids)  # (B, T, D)
        for layer in self.layers():
            x = layer(x)
        return x

    def next_state(self, ids: Tensor, cache: "KeyValueCache") -> Tensor:
        """Return the last states x_S (B, T, D) of ids (B, T) that follow the tokens in the cache, and add them to it.

        The cache is empty, or T is 1.  Together they are at most P tokens.
        """
        x = self.embed(ids, cache.length)  # (B, T, D)
        for layer in self.layers(cache):
            x = layer(x)
        cache.advance(ids.shape[1])
        return x

    @torch.no_grad()
    def generate(
        self,
        ids: Tensor,
        num_tokens: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        final_state: Callable[[Tensor], Tensor] | None = None,
        num_allowed: int | None = None,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: int | None = None,
        use_cache: bool = False,
    ) -> Tensor:
        """Continue ids, (B, T), by up to ``num_tokens`` tokens: (B, T + num_tokens), without dropout.

        Each token is drawn from softmax(logits / temperature), or is the likeliest at temperature 0.  All rows draw
        from one generator: for texts that depend on their own prompt and seed alone see ``models.generation``.

        Without a cache the context is the last ``block_length`` tokens, computed anew for every token, as in the
        authors' code.  With one, each token is computed once; a window that is full loses its older half, and the newer
        half is computed anew.  The logits of equal contexts are equal but for rounding.

        Args:
            ids: prompts of one length.
            num_tokens: the most that follow.
            temperature: 0 or above.
            generator: of the draws, which are made on its device; torch's global one if None.
            final_state: ids to states (B, T, D) in the place of all ``layers()``, without a cache; see
                ``models.generation``.
            num_allowed: only ids below it are generated; V if None.  For an output that is wider than the vocabulary.
            top_k: draw from the k likeliest tokens.
            top_p: draw from the likeliest tokens whose probabilities sum to at least p.
            stop: the id of the end of a text; a row that generates it has no other id after it, and generation ends
                with the last row.
            use_cache: keep keys and values, of a model that can (``has_cache``): several times faster.

        Raises:
            ValueError: ``num_tokens`` or ``top_k`` < 1, ``top_p`` outside (0, 1], a negative temperature,
                ``num_allowed`` outside 1 ... V, or a cache that the model does not have.
        """
        at_least("num_tokens", num_tokens)
        if temperature:
            positive("temperature", temperature)
        if top_k is not None:
            at_least("top_k", top_k)
        if top_p is not None and positive("top_p", top_p) > 1:
            raise ValueError(f"top_p must lie in (0, 1], got {top_p!r}")
        if num_allowed is not None and at_least("num_allowed", num_allowed) > self.vocabulary_size:
            raise ValueError(f"num_allowed must be at most the vocabulary of {self.vocabulary_size}, got {num_allowed}")
        if use_cache and (final_state is not None or not self.has_cache):
            raise ValueError(f"{type(self).__name__} has no cache of keys and values here: leave use_cache out")
        compute = self.final_state if final_state is None else final_state
        cache, done = KeyValueCache(), torch.zeros(len(ids), 1, dtype=torch.bool, device=ids.device)
        training = self.training
        self.eval()
        try:
            for _ in range(num_tokens):
                window = ids[:, -self.block_length :]
                state = self._last_state(ids, cache) if use_cache else compute(window)[:, -1]  # (B, D)
                logits = self.logits(state)[:, :num_allowed]  # (B, V)
                found = _next_token(_likeliest(logits, temperature, top_k, top_p), temperature, generator)  # (B, 1)
                if stop is not None:
                    found = found.masked_fill(done, stop)
                    done = done | (found == stop)
                ids = torch.cat([ids, found], 1)  # (B, T + 1)
                if stop is not None and bool(done.all()):
                    break
        finally:
            self.train(training)
        return ids

    def _last_state(self, ids: Tensor, cache: "KeyValueCache") -> Tensor:
        """Return the state (B, D) of the last of ids (B, T); the cache holds all others, or none."""
        if 0 < cache.length < self.block_length:
            return self.next_state(ids[:, -1:], cache)[:, -1]
        kept = self.block_length if cache.length == 0 else max(self.block_length // 2, 1)
        cache.clear()
        return self.next_state(ids[:, -kept:], cache)[:, -1]


class KeyValueCache:
    """Keys and values of the tokens that a model has read, for each call of an attention in a forward pass.

    The calls are told apart by their order, so a block that is applied several times has as many entries.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.length = 0
        """How many tokens the cache holds."""
        self._calls: list[tuple[Tensor, ...]] = []
        self._next = 0

    def extend(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of all tokens, (..., T, Y) each, in this call, after adding those of the new tokens."""
        if self._next == len(self._calls):
            self._calls.append(new)
        else:
            old = self._calls[self._next]
            self._calls[self._next] = tuple(torch.cat(pair, -2) for pair in zip(old, new, strict=True))
        self._next += 1
        return self._calls[self._next - 1]

    def advance(self, num_tokens: int) -> None:
        """End the forward pass of ``num_tokens`` new tokens."""
        self.length += num_tokens
        self._next = 0


def embedded(table: nn.Embedding, ids: Tensor, block_length: int) -> Tensor:
    """Return the rows (B, T, D) of ids, (B, T), in a table of embeddings (V, D).

    Raises:
        ValueError: ids of another shape, no token, more than ``block_length``, or (on a CPU) an id outside the
            vocabulary; on a GPU the data module's check has to suffice.
    """
    if ids.ndim != 2 or not 1 <= ids.shape[1] <= block_length:
        raise ValueError(
            f"ids must have the shape (B, T) with 1 <= T <= {block_length} (block_length), "
            f"got {tuple(ids.shape)}: crop the sequences to their last {block_length} tokens"
        )
    try:
        found: Tensor = table(ids)  # (B, T, D)
    except IndexError as error:
        raise ValueError(
            f"token ids lie between {int(ids.min())} and {int(ids.max())}, the model's vocabulary_size is "
            f"{table.num_embeddings}: encode the text with the tokenizer that the model was trained with"
        ) from error
    return found


_COLD = 1e-30
"""Below this temperature logits / temperature overflow in float32, and only the likeliest token has a probability."""


def _likeliest(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """Return logits (B, V) with minus infinity for the tokens that ``top_k`` and ``top_p`` exclude."""
    if top_k is not None and top_k < logits.shape[1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p is not None and temperature >= _COLD:
        ordered, places = logits.sort(descending=True, stable=True)  # (B, V) each
        shares = torch.softmax(ordered.float() / temperature, -1)
        excluded = shares.cumsum(-1) - shares >= top_p  # the tokens before it suffice; never the first
        logits = logits.masked_fill(torch.zeros_like(excluded).scatter(1, places, excluded), -torch.inf)
    return logits


def _next_token(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Choose the next tokens (B, 1) from logits (B, V)."""
    if temperature < _COLD:
        return logits.argmax(-1, keepdim=True)
    probabilities = torch.softmax(logits.float() / temperature, -1)  # (B, V)
    if generator is None:
        return torch.multinomial(probabilities, 1)
    return torch.multinomial(probabilities.to(generator.device), 1, generator=generator).to(logits.device)


# GPT and its recurrent forms (NRGPT, appendix F.1).

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
