"""S inner steps of the CEM MLP with no norm inside the loop and the preconditioner folded into the writing matrix."""

import math

from torch import Tensor

from paper_repro.kernels.cem_mlp import closed_form, reference
from paper_repro.kernels.dispatch import Way, choose


def descend(
    x: Tensor,
    gamma: Tensor,
    reading: Tensor,
    writing: Tensor,
    *,
    num_steps: int,
    step_size: float = 1.0,
    activation: str = "silu",
    implementation: str = "auto",
) -> Tensor:
    """Repeat ``num_steps`` times x <- x + step_size * writing^T (gamma * act(reading x)) (CEM, equations 15 and 17).

    ``reading`` is V and ``writing`` is V P: the same tensor when P is the identity (their gradients are then summed
    without further products).  "reference" is the definition, which autograd differentiates to any order;
    "closed_form" has first derivatives in reverse mode only (also under ``torch.func.vmap`` and ``grad``); "auto" takes
    the closed form where it saves time: with first derivatives, num_steps >= 2 (one step does not repay its calls),
    one dtype and no autocast.

    Args:
        x: (*E, ..., D), where *E are the leading dimensions of the weights: a stack of models, or none.
        gamma: (*E, ..., M), with the dimensions of ``x`` but for the last.
        reading, writing: (*E, M, D).
        activation: "silu" or "gelu" (exact).

    Returns:
        (*E, ..., D).

    Raises:
        ValueError: shapes that do not fit, ``num_steps`` < 1, an unknown name, or a closed form that is not possible.
        NotImplementedError: a second or forward-mode derivative through the closed form.
    """
    _check_options(num_steps, step_size, activation)
    _check_shapes(x, gamma, reading, writing)
    go = choose("cem_mlp", WAYS, implementation, (x, gamma, reading, writing), large=num_steps > 1)
    return go(x, gamma, reading, writing, num_steps, float(step_size), activation)


def _closed_form(
    x: Tensor, gamma: Tensor, reading: Tensor, writing: Tensor, num_steps: int, step_size: float, activation: str
) -> Tensor:
    models = math.prod(reading.shape[:-2])  # (S,) models
    tokens = math.prod(x.shape[reading.ndim - 2 : -1])
    out, *_ = closed_form.Descent.apply(
        x.reshape(models, tokens, x.shape[-1]),  # (E, N, D)
        gamma.reshape(models, tokens, gamma.shape[-1]),  # (E, N, M)
        reading.reshape(models, *reading.shape[-2:]),  # (E, M, D)
        None if writing is reading else writing.reshape(models, *writing.shape[-2:]),
        num_steps,
        step_size,
        activation,
    )
    return out.reshape(x.shape)


WAYS = (
    Way(
        "closed_form", _closed_form, order=1, one_dtype=True, autocast=False, empty=False, auto_order=1, auto_large=True
    ),
    Way("reference", reference.descend),
)


def _check_options(num_steps: int, step_size: float, activation: str) -> None:
    if not isinstance(num_steps, int) or num_steps < 1:
        raise ValueError(f"num_steps must be a whole number of at least 1, got {num_steps!r}")
    if not math.isfinite(step_size):
        raise ValueError(f"step_size must be finite, got {step_size!r}")
    if activation not in reference.ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(reference.ACTIVATIONS)}, got {activation!r}")


def _check_shapes(x: Tensor, gamma: Tensor, reading: Tensor, writing: Tensor) -> None:
    stack = reading.shape[:-2]
    fitting = (
        reading.ndim >= 2
        and writing.shape == reading.shape
        and x.ndim > len(stack)
        and x.shape[:-1] == gamma.shape[:-1]
        and x.shape[: len(stack)] == stack
        and (gamma.shape[-1], x.shape[-1]) == reading.shape[-2:]
    )
    if not fitting:
        found = ", ".join(str(tuple(value.shape)) for value in (x, gamma, reading, writing))
        raise ValueError(
            "shapes must be x (*E, ..., D), gamma (*E, ..., M), reading and writing (*E, M, D) with equal *E, ..., "
            f"D and M; got {found}"
        )
