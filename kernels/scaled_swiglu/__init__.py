"""nGPT's feed-forward activation: SwiGLU of scaled pre-activations (nGPT, equations 18, 20 and 21).

Legend: D width, M hidden width.
"""

from torch import Tensor

from paper_repro.kernels.dispatch import WITH_CLOSED_FORM, check_implementation, use_closed_form, use_fused
from paper_repro.kernels.scaled_swiglu import closed_form, reference

_OP = "scaled_swiglu"


def scaled_swiglu(
    pre: Tensor, scale_u: Tensor | None = None, scale_nu: Tensor | None = None, implementation: str = "auto"
) -> Tensor:
    """u s_u * silu(nu s_nu) of pre = [u, nu]; nGPT's factor sqrt(D) is part of the scales.

    "reference" is the definition, which autograd differentiates to any order; "closed_form" (PyTorch) and "fused"
    (Triton) have first derivatives in reverse mode only and keep ``pre`` alone for them.  "auto" is fused on CUDA, the
    closed form on a CPU where gradients are asked for in one dtype and there are scales (without them it takes 1.03
    to 1.3 times as long as the definition), and the definition elsewhere and under torch.func and torch.compile.

    Args:
        pre: (..., 2M).
        scale_u, scale_nu: (M,) or (1,); None is 1.

    Returns:
        (..., M) in the dtype of ``pre``; computed in float32 at least.

    Raises:
        ValueError: shapes that do not fit, an unknown implementation, or one that is not possible here.
        NotImplementedError: a second or forward-mode derivative of another implementation than the definition.
    """
    scales = [scale for scale in (scale_u, scale_nu) if scale is not None]
    _check_shapes(pre, scales)
    chosen = _choose(implementation, pre, scales)
    if chosen == "reference":
        return reference.scaled_swiglu(pre, scale_u, scale_nu)
    half = pre.shape[-1] // 2
    full = [None if scale is None else scale.expand(half) for scale in (scale_u, scale_nu)]
    flat = pre.reshape(-1, 2 * half)
    if chosen == "fused":
        from paper_repro.kernels.scaled_swiglu import fused

        out = fused.ScaledSwiGLU.apply(flat, *full)
    else:
        out = closed_form.ScaledSwiGLU.apply(flat, *full)
    return out.reshape(*pre.shape[:-1], half)


def _choose(implementation: str, pre: Tensor, scales: list[Tensor]) -> str:
    check_implementation(implementation, WITH_CLOSED_FORM)
    gains = bool(scales) or implementation == "closed_form"
    if gains and use_closed_form(_OP, implementation, pre, *scales):
        return "closed_form"
    return "fused" if use_fused(_OP, implementation, pre, *scales) else "reference"


def _check_shapes(pre: Tensor, scales: list[Tensor]) -> None:
    half = pre.shape[-1] // 2 if pre.ndim else 0
    if pre.ndim == 0 or pre.shape[-1] % 2 or any(scale.shape not in ((half,), (1,)) for scale in scales):
        found = ", ".join(str(tuple(value.shape)) for value in (pre, *scales))
        raise ValueError(f"shapes must be pre (..., 2M) and, if given, scales (M,) or (1,); got {found}")
