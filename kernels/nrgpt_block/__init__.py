"""The feed-forward part of NRGPT's update direction, dE/dg in closed form with a backward pass of its own.

The attention part is ``kernels.causal_attention`` with the keys as values.  Legend: D width, M hidden width.
"""

from torch import Tensor

from paper_repro.kernels.dispatch import Way, choose
from paper_repro.kernels.nrgpt_block import closed_form, reference


def one_layer_gradient(g: Tensor, weight: Tensor, bias: Tensor, implementation: str = "auto") -> Tensor:
    """Compute FF1's dE/dg of E = -|gelu(W1 g + b1)|^2 (NRGPT, section 3, model variant 1).

    "reference" is the definition, which autograd differentiates to any order; "closed_form" has first derivatives in
    reverse mode only (also under ``torch.func.vmap`` and ``grad``); "auto" takes the closed form where first
    derivatives are asked for in one dtype, outside autocast and torch.compile.

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
    return choose("one_layer_gradient", ONE_LAYER, implementation, (g, weight, bias))(g, weight, bias)


def _one_layer(g: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out, _ = closed_form.OneLayer.apply(g.reshape(1, -1, g.shape[-1]), weight.unsqueeze(0), bias.unsqueeze(0))
    return out.reshape(g.shape)  # (1, N, D) -> (..., D)


def two_weight_gradient(
    g: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, implementation: str = "auto"
) -> Tensor:
    """Compute FF2W's dE/dg of E = -g . (W2 gelu(W1 g + b1) + b2) (NRGPT, section 3, model variant 2).

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
    given = (g, up, up_bias, down, down_bias)
    return choose("two_weight_gradient", TWO_WEIGHTS, implementation, given)(*given)


def _two_weights(g: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    weights = (value.unsqueeze(0) for value in (up, up_bias, down, down_bias))
    out, *_ = closed_form.TwoWeights.apply(g.reshape(1, -1, g.shape[-1]), *weights)
    return out.reshape(g.shape)  # (1, N, D) -> (..., D)


ONE_LAYER = (
    Way("closed_form", _one_layer, order=1, one_dtype=True, compiler=False, autocast=False, empty=False, auto_order=1),
    Way("reference", reference.one_layer_gradient),
)
TWO_WEIGHTS = (
    Way(
        "closed_form", _two_weights, order=1, one_dtype=True, compiler=False, autocast=False, empty=False, auto_order=1
    ),
    Way("reference", reference.two_weight_gradient),
)


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
