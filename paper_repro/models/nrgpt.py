"""NRGPT: one block whose update is an inference rate times the gradient of an energy, applied S times.

Legend: B sequences, T tokens, N tokens that have a key, V vocabulary, P block length, D width, H heads, Y = D/H, M
hidden width, S steps, R recorded steps; g is the normed state, A and B are tokens.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from paper_repro.base.errors import at_least, one_of
from paper_repro.models.common import (
    INIT_STD,
    NORM_EPS,
    KeyValueCache,
    PositionalLanguageModel,
    check_dropout,
    check_heads,
    gelu_slope,
    linear,
)
from paper_repro.models.descent import Trajectory, descend

try:
    from paper_repro.kernels.causal_attention import causal_attention
    from paper_repro.kernels.nrgpt_block import one_layer_gradient, two_weight_gradient
    from paper_repro.kernels.preferences import speed
except ImportError:  # the same, slower
    from paper_repro.models.common import (  # type: ignore[assignment]
        causal_attention,
        one_layer_gradient,
        speed,
        two_weight_gradient,
    )

# The energies: attention and feed-forward, per token, each with its gradient in closed form.

MASKS = ("strict", "inclusive")
BETAS = ("one", "inverse_root_head_width")


class NRGPTAttention(nn.Module):
    """The attention has E_A = -1/beta sum_h alpha_h log sum_B exp(beta g_A . J_h g_B), J_h (D, D) (NRGPT, equation 11).

    The gradient is taken with the keys J_h g_B held fixed (equation 12): -sum_h alpha_h sum_B p_AB J_h g_B with
    p = softmax over B.  Under the strict mask (B < A) this is dE_A/dg_A.  Under the inclusive mask (B <= A) the term
    g_A . J_h g_A also depends on g_A through the key, which the authors' code drops.  Later tokens see g_A as a key, so
    it is not the gradient of the energies' sum over tokens either.

    Args:
        width, num_heads: D, H; each head has D^2 parameters.
        mask: "strict" (the paper; the first token has no key, its energy and gradient are zero) or "inclusive" (the
            authors' Shakespeare and OpenWebText runs).
        beta: "one" (the authors' code) or "inverse_root_head_width", 1/sqrt(Y) (the paper).
        learn_head_weights: alpha_h learnable, at first 1 (the paper); fixed at 1 in the authors' code.
        dropout: on the probabilities and on the sum over heads, in the gradient only.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        mask: str = "strict",
        beta: str = "one",
        learn_head_weights: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = check_heads(width, num_heads)
        self.mask = one_of("mask", mask, MASKS)
        self.beta = 1.0 if one_of("beta", beta, BETAS) == "one" else 1 / math.sqrt(width // num_heads)
        self.dropout = check_dropout(dropout)
        self.key = linear(width, num_heads * width, bias=False)
        self.head_weights = nn.Parameter(torch.ones(num_heads)) if learn_head_weights else None

    def energy(self, g: Tensor) -> Tensor:
        """Compute E_A, (B, T), at g (B, T, D), without dropout; it holds H T^2 scores per sequence."""
        query, key = self._query_and_key(g)
        scores = self.beta * torch.matmul(query, key.mT)  # (B, H, N, N)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=g.device).triu(1)
        log_sums = scores.masked_fill(future, -math.inf).logsumexp(-1)  # (B, H, N)
        energy = -self._sum_heads(log_sums.unsqueeze(-1)).squeeze(-1) / self.beta  # (B, N)
        return functional.pad(energy, (g.shape[1] - energy.shape[1], 0))  # (B, N) -> (B, T)

    def gradient(self, g: Tensor) -> Tensor:
        """Compute the gradient with the keys fixed, (B, T, D), at g (B, T, D).

        Under the strict mask queries 1 ... T-1 meet keys 0 ... T-2, between which causal attention is the plain one.
        """
        query, key = self._query_and_key(g)
        if not query.shape[-2]:
            return torch.zeros_like(g)
        dropout = self.dropout if self.training else 0.0
        read = causal_attention(query.expand_as(key), key, key, self.beta, dropout)  # (B, H, N, D)
        gradient = -functional.dropout(self._sum_heads(read), self.dropout, self.training)  # (B, N, D)
        return functional.pad(gradient, (0, 0, g.shape[1] - gradient.shape[1], 0))  # (B, N, D) -> (B, T, D)

    def _query_and_key(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries (B, 1, N, D) and keys (B, H, N, D); N is T or, under the strict mask, T - 1."""
        query, source = (g[:, 1:], g[:, :-1]) if self.mask == "strict" else (g, g)
        keys = self.key(source).unflatten(-1, (self.num_heads, -1))  # (B, N, D) -> (B, N, H D) -> (B, N, H, D)
        return query.unsqueeze(1), keys.transpose(1, 2)

    def _sum_heads(self, read: Tensor) -> Tensor:
        """Add up the heads, weighted with alpha: (B, H, N, d) -> (B, N, d)."""
        if self.head_weights is not None:
            read = read * self.head_weights[:, None, None]
        return read.sum(1)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, mask={self.mask}, beta={self.beta:g}, dropout={self.dropout}"


class FeedForwardEnergy(nn.Module):
    """An energy E(g), (...,), of each token alone, g (..., D); a subclass has ``energy`` and its ``gradient``."""

    energy: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Tensor]


class OneLayerEnergy(FeedForwardEnergy):
    """FF1 has E = -|gelu(z)|^2 with z = W1 g + b1, W1 (M, D) (NRGPT, section 3, model variant 1).

    dE/dg = -2 W1^T (gelu(z) * gelu'(z)).  The paper writes no bias, and a half in equation 16; the authors' code has
    the bias and no half.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = linear(width, hidden)

    def energy(self, g: Tensor) -> Tensor:
        return -functional.gelu(self.up(g)).square().sum(-1)  # (..., D) -> (..., M) -> (...,)

    def gradient(self, g: Tensor) -> Tensor:
        return one_layer_gradient(g, self.up.weight, self.up.bias)


class TwoWeightEnergy(FeedForwardEnergy):
    """FF2W has E = -g . (W2 gelu(z) + b2) with z = W1 g + b1, W1 (M, D), W2 (D, M) (NRGPT, section 3, model variant 2).

    dE/dg = -(W2 gelu(z) + b2 + W1^T (gelu'(z) * W2^T g)).  The second term of the paper's equation 24, with gelu
    around W2 g, is not the gradient of this energy.  Biases as in the authors' code.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = linear(width, hidden)
        self.down = linear(hidden, width)

    def energy(self, g: Tensor) -> Tensor:
        return -(g * self.down(functional.gelu(self.up(g)))).sum(-1)  # (..., D) -> (..., M) -> (..., D) -> (...,)

    def gradient(self, g: Tensor) -> Tensor:
        up, down = self.up, self.down
        return two_weight_gradient(g, up.weight, up.bias, down.weight, down.bias)


class TwoLayerEnergy(FeedForwardEnergy):
    """FF2 has E = -|gelu(y)|^2 with y = W2 gelu(z) + b2 and z = W1 g + b1, W1 (D, D), W2 (M, D).

    dE/dg = -2 W1^T (gelu'(z) * W2^T (gelu(y) * gelu'(y))).  From the authors' code; the paper does not describe it.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inner = linear(width, width)
        self.up = linear(width, hidden)

    def energy(self, g: Tensor) -> Tensor:
        y = self.up(functional.gelu(self.inner(g)))  # (..., D) -> (..., D) -> (..., M)
        return -functional.gelu(y).square().sum(-1)  # (...,)

    def gradient(self, g: Tensor) -> Tensor:
        z = self.inner(g)  # (..., D)
        y = self.up(functional.gelu(z))  # (..., M)
        through = torch.matmul(gelu_slope(functional.gelu(y), y), self.up.weight)  # (..., M) -> (..., D)
        return -2 * torch.matmul(gelu_slope(through, z), self.inner.weight)  # (..., D)


# The model.

NORMS = ("frozen_layer_norm", "layer_norm", "rms_norm", "none")
WITH_LEARNABLE_SCALE = ("layer_norm", "rms_norm")
INFERENCE_RATES = ("full", "identity", "positive_scalar", "norm_scale", "psd_skew")


class NRGPTEnergies(NamedTuple):
    """The energies of every token at one state, or at many."""

    attention: Tensor  # E_att, (..., B, T), summed over heads
    feed_forward: Tensor  # E_ff, (..., B, T), without the scale s
    total: Tensor  # E_att + s E_ff, (..., B, T)


class NRGPTGradients(NamedTuple):
    """The two gradients that an update is made of, at one state."""

    attention: Tensor  # dE_att/dg with the keys fixed, (B, T, D)
    feed_forward: Tensor  # dE_ff/dg, (B, T, D), without the scale s


class InferenceRate(nn.Module):
    """The rate eta of x <- x - eta dE/dg (NRGPT, equation 6), of one of five kinds.

    * "full": any matrix R (D, D), at first N(0, 0.02), as in the authors' code;
    * "identity": 1, with which section 2.3 proves asymptotic stability (equation 20);
    * "positive_scalar": c = exp(log_c) > 0, at first 1; the paper publishes no parametrisation;
    * "norm_scale": c diag(gamma), with gamma the learnable scale of the block's norm (proposition 2.1);
    * "psd_skew": U^T U + V - V^T (equation 19), whose symmetric part is positive semi-definite; U and V (D, D) start
      N(0, 0.02).  The paper prints U as (D, D'), with which U^T U would not fit V.
    """

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = one_of("inference_rate", kind, INFERENCE_RATES)
        if kind == "full":
            self.weight = nn.Parameter(torch.randn(width, width) * INIT_STD)
        elif kind in ("positive_scalar", "norm_scale"):
            self.log_c = nn.Parameter(torch.zeros(1))
        elif kind == "psd_skew":
            self.root = nn.Parameter(torch.randn(width, width) * INIT_STD)
            self.skew = nn.Parameter(torch.randn(width, width) * INIT_STD)

    def coefficient(self, norm_scale: Tensor | None) -> Tensor | None:
        """Return eta as a matrix (D, D), as its diagonal (D,), as one number (1,), or None for the identity, of the
        norm's gamma, (D,), where it has one.
        """
        if self.kind == "full":
            return self.weight
        if self.kind == "positive_scalar":
            return self.log_c.exp()
        if self.kind == "norm_scale":
            if norm_scale is None:
                raise ValueError("eta = c diag(gamma) needs gamma: choose norm='layer_norm' or norm='rms_norm'")
            return self.log_c.exp() * norm_scale
        if self.kind == "psd_skew":
            return torch.addmm(self.skew - self.skew.mT, self.root.mT, self.root)  # (D, D) + (D, D) (D, D)
        return None


class NRGPT(PositionalLanguageModel):
    """NRGPT repeats x <- x - eta (dE_att/dg + s dE_ff/dg), g = norm(x), S times with the same weights (equation 6).

    The gradient is taken at g and subtracted from x, without the chain rule through the norm.  A subclass names its
    ``feed_forward_energy``.  s is a learnable number, at first 1: the authors' code; the paper has alpha_h instead.
    With ``machine.recompute`` training keeps only the states and computes each step again in the backward pass.

    Args:
        num_heads, mask, beta, learn_head_weights: see NRGPTAttention.
        num_steps: S; no parameter depends on it.
        hidden_factor: M / D; 4 in the authors' sweeps, 8 for FF1 in the paper's appendix D.
        norm: equation 17 as "frozen_layer_norm" (scale fixed at one, learnable shift: the authors' code),
            "layer_norm" (both learnable), "rms_norm" (learnable scale, no shift) or "none" (g = x).
        inference_rate: see InferenceRate.
        dropout: on the attention's gradient; the feed-forward part has none.
    """

    feed_forward_energy: type[FeedForwardEnergy] = FeedForwardEnergy

    def __init__(
        self,
        vocabulary_size: int,
        block_length: int,
        width: int,
        num_heads: int,
        num_steps: int,
        hidden_factor: int = 4,
        mask: str = "strict",
        norm: str = "frozen_layer_norm",
        inference_rate: str = "full",
        beta: str = "one",
        learn_head_weights: bool = False,
        dropout: float = 0.0,
        tie_output: bool = False,
    ) -> None:
        super().__init__(vocabulary_size, block_length, width, tie_output)
        self.num_steps = at_least("num_steps", num_steps)
        self.norm_kind, self.norm = norm, _norm(norm, width)
        self.attention = NRGPTAttention(width, num_heads, mask, beta, learn_head_weights, dropout)
        self.feed_forward = self.feed_forward_energy(width, at_least("hidden_factor", hidden_factor) * width)
        self.feed_forward_scale = nn.Parameter(torch.ones(1))
        self.inference_rate = InferenceRate(inference_rate, width)
        self.inference_rate.coefficient(self.norm_scale)  # refuses a rate that needs another norm

    @property
    def norm_scale(self) -> Tensor | None:
        """Return gamma, (D,), where the norm has a learnable one."""
        return cast(Tensor, self.norm.weight) if self.norm_kind in WITH_LEARNABLE_SCALE else None

    def energies(self, x: Tensor) -> NRGPTEnergies:
        """Compute the energies of every token at the state x, (B, T, D), without dropout."""
        g = self.norm(x)  # (B, T, D)
        attention, feed_forward = self.attention.energy(g), self.feed_forward.energy(g)  # (B, T) each
        return NRGPTEnergies(attention, feed_forward, attention + self.feed_forward_scale * feed_forward)

    def gradients(self, x: Tensor) -> NRGPTGradients:
        """Compute the two gradients of the update at the state x, (B, T, D)."""
        g = self.norm(x)  # (B, T, D)
        return NRGPTGradients(self.attention.gradient(g), self.feed_forward.gradient(g))

    def set_inner_steps(self, number: int) -> None:
        """Let the model make ``number`` steps, whatever it was trained with."""
        self.num_steps = at_least("num_steps", number)

    def layers(self, cache: KeyValueCache | None = None) -> Sequence[Callable[[Tensor], Tensor]]:
        step = partial(self._step, coefficient=self.inference_rate.coefficient(self.norm_scale))
        if speed().recompute and self.training and torch.is_grad_enabled():
            step = partial(checkpoint, step, use_reentrant=False)
        return [step] * self.num_steps

    def trace(self, ids: Tensor, num_steps: int | None = None) -> Trajectory[Tensor]:
        """Descend from the embedded ids, (B, T), by ``num_steps`` steps or the model's own S.

        All states, (S + 1, B, T, D), and energies, (S + 1, B, T) each, are recorded.
        """
        step, count = self.layers()[0], self.num_steps if num_steps is None else num_steps
        return descend(
            lambda x, index: step(x),
            self.embed(ids),  # (B, T) -> (B, T, D)
            count,
            energy=self.energies,
            energies_at=range(count + 1),
            states_at=range(count + 1),
        )

    def _step(self, x: Tensor, coefficient: Tensor | None) -> Tensor:
        attention, feed_forward = self.gradients(x)  # (B, T, D) each
        gradient = attention + self.feed_forward_scale * feed_forward
        if coefficient is None:
            return x - gradient
        if coefficient.ndim == 2:
            return x - functional.linear(gradient, coefficient)  # (B, T, D) (D, D)
        return x - coefficient * gradient


class NRGPT_H_FF1(NRGPT):  # noqa: N801 - the paper's name
    """The NRGPT that has E_ff = -|gelu(W1 g + b1)|^2; see NRGPT and OneLayerEnergy."""

    feed_forward_energy = OneLayerEnergy


class NRGPT_H_FF2W(NRGPT):  # noqa: N801 - the paper's name
    """The NRGPT that has E_ff = -g . (W2 gelu(W1 g + b1) + b2); see NRGPT and TwoWeightEnergy."""

    feed_forward_energy = TwoWeightEnergy


class NRGPT_H_FF2(NRGPT):  # noqa: N801 - the authors' name
    """The NRGPT that has E_ff = -|gelu(W2 gelu(W1 g + b1) + b2)|^2; see NRGPT and TwoLayerEnergy."""

    feed_forward_energy = TwoLayerEnergy


def _norm(kind: str, width: int) -> nn.Module:
    one_of("norm", kind, NORMS)
    if kind == "none":
        return nn.Identity()
    if kind == "rms_norm":
        return nn.RMSNorm(width, eps=NORM_EPS)
    norm = nn.LayerNorm(width, eps=NORM_EPS)
    if kind == "frozen_layer_norm":
        norm.weight.requires_grad_(False)
    return norm


# How far the energies can go, whatever the tokens (NRGPT, appendix E.2).
# A normed state has a length of at most r = max|gamma| sqrt(D) + |shift|; the paper's appendix, which gives the norm
# unit length, has 1 + |shift|. |W| is a spectral norm, L = 1.1289... the largest slope of the exact GELU.

GELU_LIPSCHITZ = 0.5 * (1 + math.erf(1.0)) + math.sqrt(2) * math.exp(-1.0) / math.sqrt(2 * math.pi)
"""gelu'(u) = Phi(u) + u pdf(u) at its maximum, u = sqrt(2), where gelu'' = (2 - u^2) pdf(u) is zero."""


def radius(model: NRGPT) -> float:
    """Return r, the largest length that a normed state of the model can have."""
    if model.norm_kind == "none":
        raise ValueError("norm='none' leaves the states unbounded: the bounds of appendix E.2 need a norm")
    scale, shift = model.norm.weight, getattr(model.norm, "bias", None)
    assert isinstance(scale, Tensor)
    length = float(scale.detach().abs().max()) * math.sqrt(model.width)
    return length + (0.0 if shift is None else float(torch.linalg.vector_norm(shift.detach())))


def attention_bounds(attention: NRGPTAttention, r: float, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest E_A of each token, (T,) each (equations 42 and 43, summed over weighted heads):
    with n keys and scores of at most s = |J| r^2 the log-sum lies in log n / beta + [-s, s].
    """
    maps = attention.key.weight.detach().double().unflatten(0, (attention.num_heads, -1))  # (H D, D) -> (H, D, D)
    spectral = torch.linalg.matrix_norm(maps, 2)  # (H,)
    weights = torch.ones_like(spectral)
    if attention.head_weights is not None:
        weights = attention.head_weights.detach().double()
    strict = attention.mask == "strict"
    keys = torch.arange(0 if strict else 1, num_tokens + (0 if strict else 1), dtype=torch.float64)  # (T,)
    middle = -weights.sum() * keys.clamp(min=1).log() / attention.beta
    reach = (weights.abs() * spectral).sum() * r**2 * (keys > 0)
    return middle - reach, middle + reach


def feed_forward_bound(energy: FeedForwardEnergy, r: float) -> float:
    """Return the largest |E| of a token (equation 48 for FF1, the same argument for the others; biases counted)."""
    if isinstance(energy, OneLayerEnergy):
        return _after(energy.up, r) ** 2
    if isinstance(energy, TwoLayerEnergy):
        return _after(energy.up, _after(energy.inner, r)) ** 2
    down = energy.down
    assert isinstance(down, nn.Linear) and isinstance(energy.up, nn.Linear)
    return r * (_spectral(down) * _after(energy.up, r) + _length(down))


def _after(layer: nn.Linear, length: float) -> float:
    """Return the largest |gelu(W g + b)| for |g| <= length; gelu(0) = 0."""
    return GELU_LIPSCHITZ * (_spectral(layer) * length + _length(layer))


def _spectral(layer: nn.Linear) -> float:
    return float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2))


def _length(layer: nn.Linear) -> float:
    return float(torch.linalg.vector_norm(layer.bias.detach().double()))
