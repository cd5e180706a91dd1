"""These bounds say how far NRGPT's energies can go, whatever the tokens (NRGPT, appendix E.2).

A normed state has a length of at most r = max|gamma| sqrt(D) + |shift|; the paper's appendix, which gives the norm unit
length, has 1 + |shift|.  |W| is a spectral norm, L = 1.1289... the largest slope of the exact GELU.
"""

import math

import torch
from torch import Tensor, nn

from paper_repro.models.nrgpt.energy import FeedForwardEnergy, NRGPTAttention, OneLayerEnergy, TwoLayerEnergy
from paper_repro.models.nrgpt.model import NRGPT

GELU_LIPSCHITZ = 0.5 * (1 + math.erf(1.0)) + math.sqrt(2) * math.exp(-1.0) / math.sqrt(2 * math.pi)
"""gelu'(u) = Phi(u) + u pdf(u) at its maximum, u = sqrt(2), where gelu'' = (2 - u^2) pdf(u) is zero."""


def radius(model: NRGPT) -> float:
    """Return r, the largest length that a normed state of the model can have.

    Raises:
        ValueError: a model without norm, whose states have no bound.
    """
    if model.norm_kind == "none":
        raise ValueError("norm='none' leaves the states unbounded: the bounds of appendix E.2 need a norm")
    scale, shift = model.norm.weight, getattr(model.norm, "bias", None)
    assert isinstance(scale, Tensor)
    length = float(scale.detach().abs().max()) * math.sqrt(model.width)
    return length + (0.0 if shift is None else float(torch.linalg.vector_norm(shift.detach())))


def attention_bounds(attention: NRGPTAttention, r: float, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest E_A of each token, (T,) each (equations 42 and 43, summed over weighted heads).

    With n keys and scores of at most s = |J| r^2 the log-sum lies in log n / beta + [-s, s].
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
