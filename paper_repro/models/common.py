"""What models share: causal language models with their generation, and operations in plain PyTorch.

The operations are definitions, which autograd differentiates to any order.  Models call the function of the same name
in ``paper_repro.kernels`` where that package is there: it computes the same, faster.

Legend: B sequences or images, N samples or tokens of a model, T tokens, J tokens that a query sees, V vocabulary, P
block length, D width, H heads, Y head width, Z width of a value, M hidden width, S layers or steps.
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.errors import at_least, positive

Result = TypeVar("Result")


class CausalLanguageModel(nn.Module):
    """``token_embedding`` -> ``layers()`` -> ``logits`` of the next token, which depend on the tokens before it alone.

    P is ``block_length``, the most tokens that the model sees at once, and D ``width``: ids (B, T) with 1 <= T <= P ->
    logits (B, T, V).
    """

    token_embedding: nn.Embedding

    def __init__(self, vocabulary_size: int, block_length: int, width: int) -> None:
        super().__init__()
        self.vocabulary_size = at_least("vocabulary_size", vocabulary_size)
        self.block_length, self.width = at_least("block_length", block_length), at_least("width", width)

    has_cache = False
    """Whether ``layers`` takes a ``KeyValueCache``."""

    def layers(self, cache: "KeyValueCache | None" = None) -> Sequence[Callable[[Tensor], Tensor]]:
        """Return the maps (B, T, D) -> (B, T, D) that follow each other; with a cache, of the tokens after its own."""
        raise NotImplementedError

    def logits(self, x: Tensor) -> Tensor:
        """Return the next token's logits, (..., V), at final states x, (..., D)."""
        raise NotImplementedError

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        """Return x_0 (B, T, D) of ids (B, T), of which the first is at position ``start``; errors as ``embedded``."""
        return embedded(self.token_embedding, ids, self.block_length)

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
        """Return the last states x_S (B, T, D) of ids (B, T) that follow the tokens in the cache, and add them to it:
        all of a window, or one token.
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
        *,
        num_allowed: int | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: int | None = None,
        use_cache: bool = False,
    ) -> Tensor:
        """Continue ids, (B, T), by up to ``num_tokens`` tokens: (B, T + num_tokens), without dropout.

        Each token is drawn from softmax(logits / temperature), or is the likeliest at temperature 0.  All rows draw
        from one generator.  Without a cache the context is the last ``block_length`` tokens, computed anew for every
        token, as in the authors' code.  With one, each token is computed once; a window that is full loses its older
        half, and the newer half is computed anew.

        Args:
            generator: of the draws, which are made on its device; torch's global one if None.
            num_allowed: only ids below it are generated, where the output is wider than the vocabulary.
            top_k, top_p: draw from the k likeliest tokens, or from the likeliest whose probabilities sum to at least p.
            stop: the id of the end of a text, after which a row has no other.
            use_cache: keep keys and values, of a model that can (``has_cache``).

        Raises:
            ValueError: an argument out of range, or a cache that the model does not have.
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
        if use_cache and not self.has_cache:
            raise ValueError(f"{type(self).__name__} has no cache of keys and values: leave use_cache out")
        cache, done = KeyValueCache(), torch.zeros(len(ids), 1, dtype=torch.bool, device=ids.device)
        training = self.training
        self.eval()
        try:
            for _ in range(num_tokens):
                state = self._last_state(ids, cache if use_cache else None)  # (B, D)
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

    def _last_state(self, ids: Tensor, cache: "KeyValueCache | None") -> Tensor:
        """Return the state (B, D) of the last of ids (B, T); a cache holds all others, or none."""
        if cache is None:
            return self.final_state(ids[:, -self.block_length :])[:, -1]
        if 0 < cache.length < self.block_length:
            return self.next_state(ids[:, -1:], cache)[:, -1]
        kept = self.block_length if cache.length == 0 else max(self.block_length // 2, 1)
        cache.clear()
        return self.next_state(ids[:, -kept:], cache)[:, -1]


class KeyValueCache:
    """Keys and values of the tokens that a model has read, for each call of an attention in a pass, by order."""

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

    def attend(
        self,
        attention: Callable[[Tensor, Tensor, Tensor, float | None], Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None = None,
    ) -> Tensor:
        """Compute causal attention (B, H, T, Y) of new tokens, all of a window or one, over them and those before."""
        keys, values = self.extend(key, value)  # (B, H, J, Y)
        if keys.shape[2] == query.shape[2]:
            return attention(query, keys, values, scale)
        return functional.scaled_dot_product_attention(query, keys, values, scale=scale)  # one query sees all keys

    def advance(self, num_tokens: int) -> None:
        """End the forward pass of ``num_tokens`` new tokens."""
        self.length += num_tokens
        self._next = 0


def embedded(table: nn.Embedding, ids: Tensor, block_length: int) -> Tensor:
    """Return the rows (B, T, D) of ids, (B, T), in a table of embeddings (V, D).

    Raises:
        ValueError: ids of another shape or (on a CPU; on a GPU the data module checks) outside the vocabulary.
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
    device = logits.device if generator is None else generator.device
    return torch.multinomial(probabilities.to(device), 1, generator=generator).to(logits.device)


INIT_STD, NORM_EPS = 0.02, 1e-5


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer as every model here starts it: weight N(0, 0.02), bias zero."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=INIT_STD)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def check_heads(width: int, num_heads: int) -> int:
    """Return ``num_heads`` if it divides ``width``; else raise ValueError."""
    if at_least("width", width) % at_least("num_heads", num_heads):
        raise ValueError(f"num_heads must divide the width {width} (Y = D/H is whole), got {num_heads}")
    return num_heads


def check_dropout(dropout: float) -> float:
    """Return ``dropout`` if it is a probability below 1; else raise ValueError."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout!r}")
    return float(dropout)


class PositionalLanguageModel(CausalLanguageModel):
    """Token and position embeddings -> layers -> LayerNorm -> linear output (NRGPT, appendix F.1).

    Embeddings and matrices start N(0, 0.02).  ``tie_output`` shares the output matrix with the token embedding, as the
    paper's text says; the authors' code has a matrix of its own, the default.  The output bias stays.
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


# Operations.


def wide(*tensors: Tensor) -> torch.dtype:
    """Return what kernels compute in: float32, or float64 where an input is."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


class RotaryTables(NamedTuple):
    """a' = cos a - sin_first b, b' = sin_second a + cos b of (a, b) = (x_2i, x_2i+1) at position t; (P, Y/2) each."""

    cos: Tensor
    sin_first: Tensor
    sin_second: Tensor


def textbook_tables(length: int, width: int, dtype: torch.dtype = torch.float32) -> RotaryTables:
    """Compute rotations by the angles t 10000^(-2i/Y) (RoPE, arXiv 2104.09864, equation 15); computed in float64."""
    angles = _angles(length, width)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return RotaryTables(cos, sin, sin)


def published_tables(length: int, width: int, dtype: torch.dtype = torch.float32) -> RotaryTables:
    """Return what nGPT's published code computes, which is no rotation (NVIDIA/ngpt, issue 10): a' = -E_Y/2+i b, b' =
    E_i a.

    E is the table of one position with sines and cosines in turn, E_2j = sin, E_2j+1 = cos of t 10000^(-2j/Y), read as
    if it had all sines before all cosines; the identity term is missing.
    """
    angles = _angles(length, width)
    interleaved = torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(dtype)
    second, first = (half.contiguous() for half in interleaved.chunk(2, -1))
    return RotaryTables(torch.zeros_like(first), first, second)


def _angles(length: int, width: int) -> Tensor:
    """Compute the angles t 10000^(-2i/Y), (P, Y/2)."""
    if width < 2 or width % 2:
        raise ValueError(f"head width must be even and at least 2, got {width} (RoPE turns pairs)")
    at_least("length", length)
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * rates


def rotate(x: Tensor, tables: RotaryTables, scale: Tensor | None = None, normalize: bool = False) -> Tensor:
    """Turn the pairs (2i, 2i+1) of x (B, T, H, Y), then unit norm if ``normalize``, then times ``scale`` (H, Y) (nGPT,
    equations 15 and 16): (B, H, T, Y), a view of (B, T, H, Y).
    """
    given = [x, *tables] if scale is None else [x, *tables, scale]
    dtype = wide(*given)
    a, b = x.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)
    cos, first, second = (table[: x.shape[1], None].to(dtype) for table in tables)
    out = torch.stack([cos * a - first * b, second * a + cos * b], -1).flatten(-2)
    if normalize:
        out = out / torch.linalg.vector_norm(out, dim=-1, keepdim=True)
    if scale is not None:
        out = out * scale.to(dtype)
    return out.to(x.dtype).transpose(1, 2)


def unit(x: Tensor) -> Tensor:
    """Compute x / |x| over the last dimension, without an epsilon."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _wide(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool) -> tuple[Tensor, Tensor, Tensor]:
    dtype = wide(h, f, alpha)
    a = alpha.to(dtype)
    return h.to(dtype), unit(f.to(dtype)), a.abs() if absolute else a


def sphere_step(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool = True) -> Tensor:
    """Compute unit(h + a (unit(f) - h)), (..., D), with a = |alpha|, or alpha if not ``absolute`` (nGPT, equations 10
    and 11); h and f (..., D), alpha (D,) or (1,).
    """
    state, u, a = _wide(h, f, alpha, absolute)
    return unit(torch.lerp(state, u, a)).to(h.dtype)


def riemannian_step(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool = True) -> Tensor:
    """Compute unit(h - a (h (h . u) - u)) with u = unit(f): along the tangent of a unit vector h, then back (nGPT,
    equations 25 and 26); h, f, alpha and absolute as for ``sphere_step``.
    """
    state, u, a = _wide(h, f, alpha, absolute)
    gradient = state * (state * u).sum(-1, keepdim=True) - u
    return unit(state - a * gradient).to(h.dtype)


@torch.no_grad()
def project_rows_(tensor: Tensor) -> Tensor:
    """Set x <- x / |x| over the last dimension, (..., rows, D), in place; computed in float32 (float64 for float64)."""
    if tensor.ndim < 2:
        raise ValueError(f"unit rows need a matrix (..., rows, D), got {tuple(tensor.shape)}")
    rows = tensor.to(wide(tensor))  # (..., rows, D)
    rows.div_(torch.linalg.vector_norm(rows, dim=-1, keepdim=True))
    return tensor if rows is tensor else tensor.copy_(rows)


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """Compute sum_j p_ij v_j, (B, H, T, Z), with p_ij = softmax over j <= i of scale q_i . k_j; scale is 1/sqrt(Y) if
    None.  Queries and keys are (B, H, T, Y), values (B, H, T, Z).
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = torch.matmul(query, key.mT).to(dtype) * (query.shape[-1] ** -0.5 if scale is None else scale)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)  # (T, T)
    probabilities = torch.softmax(scores.masked_fill(future, -math.inf), -1)  # (B, H, T, T)
    if dropout:
        probabilities = functional.dropout(probabilities, dropout)
    return torch.matmul(probabilities.to(value.dtype), value)  # (B, H, T, Z)


def linear_cross_entropy(
    h: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Compute logsumexp(z) - z_target with z = scale * (weight h) (nGPT, equation 3), in float32 at least; h (..., D),
    weight (V, D), targets (...), of which -100 does not count, scale (V,) or (1,); reduction "mean" or "none" (...).
    """
    logits = functional.linear(h, weight)
    if scale is not None:
        logits = logits * scale
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    loss = functional.cross_entropy(logits.reshape(-1, weight.shape[0]), targets.reshape(-1), reduction=reduction)
    return loss.reshape(targets.shape) if reduction == "none" else loss


@torch.no_grad()
def negative_log_likelihoods(h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None = None) -> Tensor:
    """Compute ``linear_cross_entropy`` of each token, (...), without gradients."""
    return linear_cross_entropy(h, weight, targets, scale, "none")


def scaled_swiglu(pre: Tensor, scale_u: Tensor | None = None, scale_nu: Tensor | None = None) -> Tensor:
    """Compute u s_u * silu(nu s_nu), (..., M), of pre = [u, nu] (..., 2M), in float32 at least (nGPT, equations 18, 20
    and 21); scales (M,) or (1,).
    """
    u, nu = pre.to(torch.promote_types(pre.dtype, torch.float32)).chunk(2, -1)
    up = u if scale_u is None else u * scale_u
    gate = nu if scale_nu is None else nu * scale_nu
    return (up * functional.silu(gate)).to(pre.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight, (..., D)."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def swiglu(pre: Tensor) -> Tensor:
    """Compute SiLU(g) * u, (..., M), of pre = [g, u], (..., 2M)."""
    gate, up = pre.chunk(2, -1)  # (..., M) each
    return functional.silu(gate) * up


def self_slot_attention(
    query: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    keys: Tensor,
    values: Tensor,
    lead: int = 0,
    scale: float | None = None,
) -> Tensor:
    """Compute attention over the observed columns j <= i + lead, and over the query's own key and value as one more
    (Energy-Based Transformers, appendix C.6): (N B, H, T, Z).

    Queries and own keys are (N B, H, T, Y), own values (N B, H, T, Z), keys (B, H, T + lead, Y), values (B, H, T +
    lead, Z); scale is 1/sqrt(Y) if None.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    dtype = torch.promote_types(query.dtype, torch.float32)
    tokens, columns = query.shape[2], keys.shape[2]
    rows = samples_to_rows(query, keys)  # (B, H, N T, Y)
    future = torch.full((tokens, columns), -math.inf, dtype=query.dtype, device=query.device).triu(1 + lead)
    future = future.repeat(rows.shape[2] // max(tokens, 1), 1).expand(*rows.shape[:2], -1, -1)  # (B, H, N T, T + lead)
    observed = torch.baddbmm(future.flatten(0, 1), rows.flatten(0, 1), keys.flatten(0, 1).mT, alpha=scale)
    own = (rows.to(dtype) * samples_to_rows(own_key, keys)).sum(-1, keepdim=True) * scale  # (B, H, N T, 1)
    scores = torch.cat((observed.view_as(future).to(dtype), own), -1)  # (B, H, N T, T + lead + 1)
    probabilities = torch.softmax(scores, -1).to(values.dtype)
    to_observed, to_own = probabilities.split((columns, 1), -1)
    out = torch.matmul(to_observed, values) + to_own * samples_to_rows(own_value, keys)  # (B, H, N T, Z)
    return rows_to_samples(out, query)


def samples_to_rows(of_samples: Tensor, keys: Tensor) -> Tensor:
    """Return (N B, H, T, Y) as (B, H, N T, Y): all queries that read the same keys; a view where N is 1."""
    if of_samples.shape[0] == keys.shape[0]:
        return of_samples
    by_sample = of_samples.unflatten(0, (-1, keys.shape[0]))  # (N, B, H, T, Y)
    return by_sample.permute(1, 2, 0, 3, 4).flatten(2, 3)  # (B, H, N T, Y)


def rows_to_samples(rows: Tensor, query: Tensor) -> Tensor:
    """Return (B, H, N T, Y) as (N B, H, T, Y), for queries of that shape; the inverse of ``samples_to_rows``."""
    if rows.shape[0] == query.shape[0]:
        return rows
    by_sample = rows.unflatten(2, (-1, query.shape[2]))  # (B, H, N, T, Y)
    return by_sample.permute(2, 0, 1, 3, 4).flatten(0, 1)  # (N B, H, T, Y)


def gelu_slope(factor: Tensor, z: Tensor) -> Tensor:
    """Compute factor * gelu'(z), gelu'(z) = Phi(z) + z pdf(z) of the exact GELU, in one pass."""
    return torch.ops.aten.gelu_backward(factor, z)


def one_layer_gradient(g: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute -2 W1^T (gelu(z) * gelu'(z)) with z = W1 g + b1; (..., D)."""
    z = functional.linear(g, weight, bias)
    return -2 * torch.matmul(gelu_slope(functional.gelu(z), z), weight)


def two_weight_gradient(g: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    """Compute -(W2 gelu(z) + b2 + W1^T (gelu'(z) * W2^T g)) with z = W1 g + b1; (..., D)."""
    z = functional.linear(g, up, up_bias)
    through = torch.matmul(gelu_slope(torch.matmul(g, down), z), up)
    return -(functional.linear(functional.gelu(z), down, down_bias) + through)


class Positions(NamedTuple):
    """What a score owes to its places alone: -slope_k (i - j) + (bias_self where i = j, else bias_cross)."""

    slopes: Tensor
    """(H,), without a gradient."""
    bias_self: Tensor
    bias_cross: Tensor


def no_positions(keys: Tensor) -> Positions:
    """Return what adds nothing to the scores of keys (B, T, H, Y)."""
    zero = keys.new_zeros((), dtype=wide(keys))
    return Positions(zero.expand(keys.shape[2]), zero, zero)


def tied_attention(
    query: Tensor, keys: Tensor, state: Tensor | None, context: Tensor | None, positions: Positions, tau: float
) -> tuple[Tensor, Tensor]:
    """Compute o_ik = sum_j a_ijk k_jk (B, T, H, Y) and lse_ik = log sum_j exp(s_ijk) (B, T, H), over j <= i, with

        a = softmax_j(s),   s_ijk = (k_jk . q_ik + (h_j d) . u_i) / tau + what ``positions`` say

    (CEM, equations 1 and 12) of queries and keys (B, T, H, Y), state u and context h d (B, T, D).
    """
    dtype = wide(query, keys)
    scores = torch.einsum("bikr,bjkr->bkij", query, keys).to(dtype)  # (B, H, T, T)
    if state is not None and context is not None:
        scores = scores + torch.einsum("bid,bjd->bij", state, context).unsqueeze(1)
    place = torch.arange(query.shape[1], device=query.device)
    distance = place.unsqueeze(1) - place  # (T, T)
    bias = torch.where(distance == 0, positions.bias_self, positions.bias_cross)
    scores = scores / tau + (bias - positions.slopes.view(-1, 1, 1) * distance).to(dtype)
    scores = scores.masked_fill(distance < 0, -torch.inf)
    out = torch.einsum("bkij,bjkr->bikr", torch.softmax(scores, -1).to(keys.dtype), keys)
    return out, torch.logsumexp(scores, -1).transpose(1, 2)


def descend_attention(
    x: Tensor,
    keys: Tensor,
    reading: Tensor,
    writing: Tensor,
    context: Tensor | None = None,
    norm_weight: Tensor | None = None,
    positions: Positions | None = None,
    *,
    num_steps: int,
    step_size: float = 1.0,
    tau: float,
    norm_eps: float = 1e-6,
) -> Tensor:
    """Repeat ``num_steps`` times x <- x + step_size * o writing (CEM, equations 14 and 16, Algorithm 1), where

        u = RMSNorm(x) * norm_weight (x itself without one),   q = u reading^T,   o of ``tied_attention`` at u

    x and context are (B, T, D), keys (B, T, H, Y), reading and writing (H Y, D).
    """
    positions = no_positions(keys) if positions is None else positions
    for _ in range(num_steps):
        u = x if norm_weight is None else functional.rms_norm(x, x.shape[-1:], norm_weight, norm_eps)
        query = functional.linear(u, reading).unflatten(-1, keys.shape[2:])  # (B, T, H, Y)
        out, _ = tied_attention(query, keys, None if context is None else u, context, positions, tau)
        x = x + step_size * (out.flatten(2) @ writing)  # (B, T, D)
    return x


def energy_attention(
    query: Tensor,
    key: Tensor,
    gamma: float,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    normaliser: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute P K, P^T Q, (B, H, T, Y) each, and lse_n = log sum_m exp(gamma q_n . k_m), (B, H, T), with P =
    softmax(gamma Q K^T) over keys (CET, equations 11 to 14); ``out`` takes the first two, lse is empty if not wanted.
    """
    dtype = wide(query, key)
    scores = gamma * torch.matmul(query, key.mT).to(dtype)
    weights = torch.softmax(scores, -1).to(key.dtype)
    by_query, by_key = torch.matmul(weights, key), torch.matmul(weights.mT, query)
    if out is not None:
        by_query, by_key = out[0].copy_(by_query), out[1].copy_(by_key)
    return by_query, by_key, torch.logsumexp(scores, -1) if normaliser else scores.new_empty(0)


PROJECTION_EPS = 1e-12
"""Under the root, as in the golden records: a constant token would divide by zero."""


def project(z: Tensor) -> Tensor:
    """Return the nearest tokens of mean 0 and population standard deviation 1: of each row of (..., D) (equation 2)."""
    centred = z - z.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + PROJECTION_EPS)


def projected_step(z: Tensor, target: Tensor, step_size: float, *, out: Tensor | None = None) -> Tensor:
    """Compute z' = project(z + step_size (target - z)), (..., D) (CET, equations 1 and 2); ``out`` takes z'."""
    moved = project(torch.lerp(z, target.to(z.dtype), step_size))
    return moved if out is None else out.copy_(moved)


def image_step(
    y: Tensor,
    patches: Tensor,
    bias: Tensor,
    step_size: float,
    wanted: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Compute y' = y + step_size (t - y), (B, n + k - 1, n + k - 1, C), with t = fold(patches) + bias - 2 beta (y -
    wanted) (CET, equations 1, 5 and 15); ``out`` takes y'.
    """
    target = fold(patches.to(y.dtype), y) + bias  # (B, S, S, C)
    if wanted is not None and beta is not None:
        target = target - 2 * beta.view(-1, 1, 1, 1) * (y - wanted)
    moved = torch.lerp(y, target, step_size)
    return moved if out is None else out.copy_(moved)


def fold(patches: Tensor, y: Tensor) -> Tensor:
    """Add up patches (B, n^2, k^2 C) where they overlap, as blocks like y, (B, n + k - 1, n + k - 1, C)."""
    (reach, side), own = reach_and_side(patches, y), y.shape[3]
    out = torch.zeros_like(y)
    for index, part in enumerate(patches.unflatten(1, (side, side)).split(own, -1)):
        i, j = divmod(index, reach)
        out[:, i : i + side, j : j + side] += part
    return out


def to_blocks(images: Tensor, side: int) -> Tensor:
    """Cut images (B, C, H, H) into blocks of s x s pixels, (B, H/s, H/s, C s^2), ordered by channel, row, column."""
    cut = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (B, C, H/s, s, H/s, s)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3)


def from_blocks(blocks: Tensor, side: int) -> Tensor:
    """Undo ``to_blocks``."""
    cut = blocks.unflatten(3, (-1, side, side))  # (B, H/s, H/s, C, s, s)
    return cut.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def reach_and_side(patches: Tensor, y: Tensor) -> tuple[int, int]:
    """Return k and n of ``fold``."""
    reach, side = (round(count**0.5) for count in (patches.shape[2] / y.shape[3], patches.shape[1]))
    return reach, side


def speed() -> SimpleNamespace:
    """Return what a process without kernels prefers, see ``kernels.preferences.Speed``."""
    return SimpleNamespace(recompute=False, cuda_graph=False)


def capture(work: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
    """Capture work on the current GPU as a CUDA graph; returns what does it again, and where it leaves its results."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        work()  # kernels are compiled and libraries loaded outside the capture
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ended = work()
    return graph.replay, ended
