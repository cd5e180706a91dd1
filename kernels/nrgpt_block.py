"""The feed-forward part of NRGPT's update direction, dE/dg in closed form with a backward pass of its own.

The attention part is ``kernels.causal_attention`` with the keys as values.  With G the gradient of what ``forward``
returned, s = gelu'(z), w = gelu''(z) = (2 - z^2) pdf(z) and a = gelu(z), the backward passes are

    FF1   dz = -2 (W1 G) * (s^2 + a w),                  dW1 = dz^T g - 2 (a s)^T G,     dg = W1^T dz
    FF2W  dz = -(W2^T G) * s - (W1 G) * v * w,           dW1 = dz^T g - (v s)^T G,       v = W2^T g
          dv = -(W1 G) * s,                              dW2 = g^T dv - G^T a,           dg = W1^T dz + W2 dv

The forward pass keeps g and the pre-activations z and v.  erf and exp are computed once for s, w and a, which are held
doubled (``_doubled``); the halves are factors of the matrix products.

Legend: B sequences, T tokens, H heads, E models, N tokens of a model, D width, M hidden width.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import Shapes, Way, choose, closed_form_way, device_type
from paper_repro.kernels.first_order import Stackable, WithGradient
from paper_repro.models import common

SMALL = 1 << 14
"""Models whose (N, M) arrays have fewer entries are computed as one: the calls would take longer than the work."""
PIECE, LEAST_TOKENS = 1 << 16, 256
"""Entries of a (tokens, M) piece per thread on a CPU, and its tokens at least: half a dozen fit in 2 MB of cache."""

_TWO_PDF = 2 / math.sqrt(2 * math.pi)


class OneLayerGradient(Stackable):
    """The gradients of g, W1 and b1, given G (E, N, D), g, the weights and z."""

    @staticmethod
    def forward(gradient: Tensor, g: Tensor, weight: Tensor, bias: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        dg, dweight, dbias = torch.empty_like(g), torch.zeros_like(weight), z.new_zeros(z.shape[0], 1, z.shape[2])
        for (G, piece, before, into), (w, dw, db) in _pieces((gradient, g, z, dg), (weight, dweight, dbias)):
            activation, slope, bend = _doubled(before)
            dz = bend.mul_(activation).mul_(_TWO_PDF).addcmul_(slope, slope)
            dz.mul_(torch.matmul(G, w.mT))  # (N, M)
            _product(activation.mul_(slope).mT, G, into=dw, factor=-0.5, start=dw)
            _product(dz.mT, piece, into=dw, factor=-0.5, start=dw)  # (M, D)
            _product(dz, w, into=into, factor=-0.5)
            db.sub_(dz.sum(-2, keepdim=True), alpha=0.5)
        return dg, dweight, dbias.squeeze(1)


class OneLayer(Stackable, WithGradient):
    """FF1 of g (E, N, D), W1 (E, M, D), b1 (E, M): the gradient (E, N, D), and z (E, N, M) for the backward pass."""

    gradient = OneLayerGradient

    @staticmethod
    def forward(g: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        out, z = torch.empty_like(g), g.new_empty(*g.shape[:2], weight.shape[1])
        for (piece, into, before), (w, b) in _models((g, out, z), (weight, bias.unsqueeze(1))):
            _product(piece, w.mT, into=before, start=b)  # (N, M)
            hidden = torch.ops.aten.gelu(before)
            torch.ops.aten.gelu_backward.grad_input(hidden, before, grad_input=hidden)
            _product(hidden, w, into=into, factor=-2)  # (N, D)
        return out, z


class TwoWeightsGradient(Stackable):
    """The gradients of g, W1, b1, W2 and b2, given G (E, N, D), g, the weights, z and v."""

    @staticmethod
    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        gradient, g, up, _, down, _, z, v = given
        dg, dup, ddown = torch.empty_like(g), torch.zeros_like(up), torch.zeros_like(down)
        dup_bias = z.new_zeros(z.shape[0], 1, z.shape[2])
        weights = (up, down, dup, ddown, dup_bias)
        for (G, piece, before, gate, into), (w1, w2, dw1, dw2, db) in _pieces((gradient, g, z, v, dg), weights):
            activation, slope, bend = _doubled(before)
            _product(G.mT, activation, into=dw2, factor=-0.5, start=dw2)
            dv = torch.matmul(G, w1.mT, out=activation)  # (N, M)
            bend.mul_(dv).mul_(gate)
            _product(piece.mT, dv.mul_(slope), into=dw2, factor=-0.5, start=dw2)
            _product(dv, w2.mT, into=into, factor=-0.5)  # (N, D)
            dz = torch.matmul(G, w2, out=dv).mul_(slope).add_(bend, alpha=_TWO_PDF)
            _product(dz, w1, into=into, factor=-0.5, start=into)
            _product(dz.mT, piece, into=dw1, factor=-0.5, start=dw1)
            db.sub_(dz.sum(-2, keepdim=True), alpha=0.5)
            _product(slope.mul_(gate).mT, G, into=dw1, factor=-0.5, start=dw1)
        return dg, dup, dup_bias.squeeze(1), ddown, -gradient.sum(1)


class TwoWeights(Stackable, WithGradient):
    """FF2W of g (E, N, D), W1 (E, M, D), b1 (E, M), W2 (E, D, M), b2 (E, D): the gradient (E, N, D), and z and v."""

    gradient = TwoWeightsGradient

    @staticmethod
    def forward(
        g: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, z = torch.empty_like(g), g.new_empty(*g.shape[:2], up.shape[1])
        v = torch.empty_like(z)
        weights = (up, up_bias.unsqueeze(1), down, down_bias.unsqueeze(1))
        for (piece, into, before, gate), (w1, b1, w2, b2) in _models((g, out, z, v), weights):
            _product(piece, w1.mT, into=before, start=b1)  # (N, M)
            _product(piece, w2, into=gate)  # (N, M)
            hidden = torch.ops.aten.gelu(before)
            _product(hidden, w2.mT, into=into, factor=-1, start=b2, keep=-1)  # (N, D)
            torch.ops.aten.gelu_backward.grad_input(gate, before, grad_input=hidden)
            _product(hidden, w1, into=into, factor=-1, start=into)
        return out, z, v


def _doubled(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute 2 gelu(z), 2 gelu'(z), and gelu''(z) without the factor 1/sqrt(2 pi) of the density."""
    squared = z * z
    density = (squared * -0.5).exp_()
    twice_phi = (z * math.sqrt(0.5)).erf_().add_(1)
    bend = squared.neg_().add_(2).mul_(density)
    activation = z * twice_phi
    return activation, twice_phi.addcmul_(z, density, value=_TWO_PDF), bend


def _product(
    one: Tensor, two: Tensor, *, into: Tensor, factor: float = 1, start: Tensor | None = None, keep: float = 1
) -> None:
    """Compute into = factor one two + keep start; matrices, or stacks of them."""
    add = torch.addmm if one.ndim == 2 else torch.baddbmm
    if start is None:
        add(into, one, two, beta=0, alpha=factor, out=into)
    else:
        add(start, one, two, beta=keep, alpha=factor, out=into)


def _models(
    by_token: tuple[Tensor, ...], by_model: tuple[Tensor, ...]
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """Yield one model after the other on a CPU where z, the third of ``by_token``, is large; else the stack at once."""
    hidden = by_token[2]
    if device_type(hidden) != "cpu" or hidden[0].numel() < SMALL:
        yield by_token, by_model
    else:
        yield from zip(zip(*by_token, strict=True), zip(*by_model, strict=True), strict=True)


def _pieces(
    by_token: tuple[Tensor, ...], by_model: tuple[Tensor, ...]
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """Yield as ``_models`` does, one model some tokens at a time: a pass finds in the cache what the last one left."""
    for tensors, weights in _models(by_token, by_model):
        if tensors[0].ndim == by_token[0].ndim:
            yield tensors, weights
            continue
        tokens = max(LEAST_TOKENS, PIECE * torch.get_num_threads() // tensors[2].shape[-1])
        for rows in zip(*(value.split(tokens) for value in tensors), strict=True):
            yield rows, weights


def one_layer_gradient(g: Tensor, weight: Tensor, bias: Tensor, implementation: str = "auto") -> Tensor:
    """Compute FF1's dE/dg (..., D) of E = -|gelu(W1 g + b1)|^2 (NRGPT, section 3, model variant 1).

    g is (..., D), W1 (M, D), b1 (M,).  "closed_form" has first derivatives in reverse mode only, also under
    ``torch.func.vmap`` and ``grad``.
    """
    SHAPES.check(g, weight, bias, None, None)
    return choose("one_layer_gradient", ONE_LAYER_WAYS, implementation, (g, weight, bias))(g, weight, bias)


def two_weight_gradient(
    g: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, implementation: str = "auto"
) -> Tensor:
    """Compute FF2W's dE/dg (..., D) of E = -g . (W2 gelu(W1 g + b1) + b2) (NRGPT, section 3, model variant 2).

    g is (..., D), W1 (M, D), b1 (M,), W2 (D, M), b2 (D,).  For "closed_form" see ``one_layer_gradient``.
    """
    SHAPES.check(g, up, up_bias, down, down_bias)
    given = (g, up, up_bias, down, down_bias)
    return choose("two_weight_gradient", TWO_WEIGHTS_WAYS, implementation, given)(*given)


def _of_one_model(function: type[WithGradient]) -> Callable[..., Tensor]:
    def gradient(g: Tensor, *weights: Tensor) -> Tensor:
        out, *_ = function.apply(g.reshape(1, -1, g.shape[-1]), *(weight.unsqueeze(0) for weight in weights))
        return out.reshape(g.shape)  # (1, N, D) -> (..., D)

    return gradient


SHAPES = Shapes(g="... D", W1="M D", b1="M", W2="D M", b2="D")
ONE_LAYER_WAYS: tuple[Way[Callable[..., Tensor]], ...] = (
    closed_form_way(_of_one_model(OneLayer), order=1, dtypes=None, vmap=True, auto_order=1),
    Way("reference", common.one_layer_gradient),
)
TWO_WEIGHTS_WAYS: tuple[Way[Callable[..., Tensor]], ...] = (
    closed_form_way(_of_one_model(TwoWeights), order=1, dtypes=None, vmap=True, auto_order=1),
    Way("reference", common.two_weight_gradient),
)
