"""The energies of NRGPT: attention and feed-forward, per token, each with its gradient in closed form.

Legend: B sequences, T tokens, N tokens that have a key, D width, H heads, Y = D/H, M hidden width; g is the normed
state, A and B are tokens.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.arguments import at_least, one_of
from paper_repro.kernels import nrgpt_block
from paper_repro.kernels.causal_attention import causal_attention
from paper_repro.kernels.nrgpt_block import gelu_slope
from paper_repro.models.gpt import check_dropout, check_heads, linear

MASKS = ("strict", "inclusive")
BETAS = ("one", "inverse_root_head_width")


class NRGPTAttention(nn.Module):
    """The attention has E_A = -1/beta sum_h alpha_h log sum_B exp(beta g_A . J_h g_B), J_h (D, D) (NRGPT, equation 11).

    The gradient is taken with the keys J_h g_B held fixed (equation 12): -sum_h alpha_h sum_B p_AB J_h g_B with
    p = softmax over B.  Under the strict mask (B < A) this is dE_A/dg_A.  Under the inclusive mask (B <= A) it is
    not: the term g_A . J_h g_A also depends on g_A through the key, which the authors' code drops.  It is not the
    gradient of the energies' sum over tokens either: later tokens see g_A as a key.

    Args:
        width: D.
        num_heads: H; each has D^2 parameters.
        mask: "strict" (the paper; the first token has no key, its energy and gradient are zero) or "inclusive" (the
            authors' Shakespeare and OpenWebText runs).
        beta: "one" (the authors' code) or "inverse_root_head_width", 1/sqrt(Y) (the paper).
        learn_head_weights: alpha_h learnable, at first 1 (the paper); fixed at 1 in the authors' code.
        dropout: on the probabilities and on the sum over heads, in the gradient only.

    Raises:
        ValueError: heads that do not divide the width, ``dropout`` outside [0, 1), or an unknown word.
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
        """Compute E_A, (B, T), at g (B, T, D), without dropout.

        It is for measurement, for it holds H T^2 scores per sequence.
        """
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
    """A feed-forward energy E(g) belongs to each token alone; a variant is a subclass with E and dE/dg in closed form.

    Raises:
        ValueError: a size below one.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.width, self.hidden = at_least("width", width), at_least("hidden", hidden)

    def energy(self, g: Tensor) -> Tensor:
        """Compute E, (...,), at g (..., D)."""
        raise NotImplementedError(f"{type(self).__name__} must define energy(g)")

    def gradient(self, g: Tensor) -> Tensor:
        """Compute dE/dg, (..., D), at g (..., D)."""
        raise NotImplementedError(f"{type(self).__name__} must define gradient(g)")


class OneLayerEnergy(FeedForwardEnergy):
    """FF1 has E = -|gelu(z)|^2 with z = W1 g + b1, W1 (M, D) (NRGPT, section 3, model variant 1).

    dE/dg = -2 W1^T (gelu(z) * gelu'(z)).  The paper writes no bias, and a half in equation 16; the authors' code has
    the bias and no half.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        self.up = linear(width, hidden)

    def energy(self, g: Tensor) -> Tensor:
        return -functional.gelu(self.up(g)).square().sum(-1)  # (..., D) -> (..., M) -> (...,)

    def gradient(self, g: Tensor) -> Tensor:
        return nrgpt_block.one_layer_gradient(g, self.up.weight, self.up.bias)


class TwoWeightEnergy(FeedForwardEnergy):
    """FF2W has E = -g . (W2 gelu(z) + b2) with z = W1 g + b1, W1 (M, D), W2 (D, M) (NRGPT, section 3, model variant 2).

    dE/dg = -(W2 gelu(z) + b2 + W1^T (gelu'(z) * W2^T g)).  The second term of the paper's equation 24, with gelu
    around W2 g, is not the gradient of this energy.  Biases as in the authors' code.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        self.up = linear(width, hidden)
        self.down = linear(hidden, width)

    def energy(self, g: Tensor) -> Tensor:
        return -(g * self.down(functional.gelu(self.up(g)))).sum(-1)  # (..., D) -> (..., M) -> (..., D) -> (...,)

    def gradient(self, g: Tensor) -> Tensor:
        up, down = self.up, self.down
        return nrgpt_block.two_weight_gradient(g, up.weight, up.bias, down.weight, down.bias)


class TwoLayerEnergy(FeedForwardEnergy):
    """FF2 has E = -|gelu(y)|^2 with y = W2 gelu(z) + b2 and z = W1 g + b1, W1 (D, D), W2 (M, D).

    dE/dg = -2 W1^T (gelu'(z) * W2^T (gelu(y) * gelu'(y))).  From the authors' code; the paper does not describe it.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
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
