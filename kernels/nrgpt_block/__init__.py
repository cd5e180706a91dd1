"""The feed-forward part of NRGPT's update direction, dE/dg in closed form with a backward pass of its own.

The attention part is ``kernels.causal_attention`` with the keys as values.  Legend: D width, M hidden width.
"""

import torch
from torch import Tensor

from paper_repro.kernels.nrgpt_block import closed_form, reference

IMPLEMENTATIONS = ("auto", "closed_form", "reference")


def one_layer_gradient(g: Tensor, weight: Tensor, bias: Tensor, implementation: str = "auto") -> Tensor:
    """FF1: dE/dg of E = -|gelu(W1 g + b1)|^2 (NRGPT, section 3, model variant 1).

    "reference" is the definition, which autograd differentiates to any order; "closed_form" has first derivatives in
    reverse mode only (also under ``torch.func.vmap`` and ``grad``); "auto" takes the closed form where gradients are
    asked for in one dtype, outside autocast and torch.compile.

    Args:
        g: (..., D).
        weight, bias: W1 (M, D), b1 (M,).

    Returns:
        (..., D).

    Raises:
        ValueError: shapes that do not fit, an unknown implementation, or a closed form that is not possible.
        NotImplementedError: a second or forward-mode derivative through the closed form.
    """
    _check_shapes(g, weight, bias)
    if not _closed(implementation, g, weight, bias):
        return reference.one_layer_gradient(g, weight, bias)
    out, _ = closed_form.OneLayer.apply(g.reshape(1, -1, g.shape[-1]), weight.unsqueeze(0), bias.unsqueeze(0))
    return out.reshape(g.shape)


def two_weight_gradient(
    g: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, implementation: str = "auto"
) -> Tensor:
    """FF2W: dE/dg of E = -g . (W2 gelu(W1 g + b1) + b2) (NRGPT, section 3, model variant 2).

    Args:
        g: (..., D).
        up, up_bias: W1 (M, D), b1 (M,).
        down, down_bias: W2 (D, M), b2 (D,).
        implementation: see ``one_layer_gradient``.

    Returns:
        (..., D).

    Raises:
        ValueError, NotImplementedError: as ``one_layer_gradient``.
    """
    _check_shapes(g, up, up_bias, down, down_bias)
    if not _closed(implementation, g, up, up_bias, down, down_bias):
        return reference.two_weight_gradient(g, up, up_bias, down, down_bias)
    weights = (value.unsqueeze(0) for value in (up, up_bias, down, down_bias))
    out, *_ = closed_form.TwoWeights.apply(g.reshape(1, -1, g.shape[-1]), *weights)
    return out.reshape(g.shape)


def _closed(implementation: str, *tensors: Tensor) -> bool:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, got {implementation!r}")
    device = tensors[0].device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    one_dtype = len({tensor.dtype for tensor in tensors}) == 1
    possible = one_dtype and tensors[0].numel() > 0 and not autocast and not torch.compiler.is_compiling()
    if implementation == "closed_form" and not possible:
        raise ValueError(
            "implementation='closed_form' needs one dtype, tokens, no autocast and no compiler: use 'auto'"
        )
    return implementation == "closed_form" or (implementation == "auto" and possible and torch.is_grad_enabled())


def _check_shapes(g: Tensor, up: Tensor, up_bias: Tensor, *down: Tensor) -> None:
    expected = [up.shape[::-1], up.shape[1:]][: len(down)]
    fitting = (
        up.ndim == 2
        and g.ndim >= 1
        and (g.shape[-1:], up_bias.shape) == (up.shape[1:], up.shape[:1])
        and [value.shape for value in down] == expected
    )
    if not fitting:
        found = ", ".join(str(tuple(value.shape)) for value in (g, up, up_bias, *down))
        raise ValueError(
            f"shapes must be g (..., D), W1 (M, D), b1 (M,) and, if given, W2 (D, M), b2 (D,); got {found}"
        )
