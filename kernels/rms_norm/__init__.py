"""RMSNorm for losses that contain a gradient: its second derivatives by hand.

Legend: D width, the last dimension.
"""

from torch import Tensor

from paper_repro.kernels.dispatch import Way, choose, closed_form_way
from paper_repro.kernels.rms_norm import closed_form, reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, implementation: str = "auto") -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv 1910.07467).

    "reference" is torch's own, which autograd differentiates to any order.  "closed_form" (PyTorch) has first and
    second derivatives in reverse mode, by autograd and by torch.func.grad in any nesting of two; for them it keeps its
    inputs and one number for each row.  "auto" takes it where second derivatives may be asked for, outside of vmap,
    torch.compile and autocast; there autograd keeps several tensors of the size of x for each derivative.

    Args:
        x: (..., D).
        weight: (D,).
        eps: above 0.

    Returns:
        (..., D).

    Raises:
        ValueError: shapes that do not fit, an unknown implementation, or one that is not possible.
        NotImplementedError: a third or forward-mode derivative of the closed form.
    """
    if x.ndim == 0 or weight.shape != x.shape[-1:]:
        raise ValueError(f"shapes must be x (..., D) and weight (D,), got {tuple(x.shape)} and {tuple(weight.shape)}")
    return choose("rms_norm", WAYS, implementation, (x, weight))(x, weight, eps)


WAYS = (
    closed_form_way(closed_form.rms_norm, order=2, auto_order=2),
    Way("reference", reference.rms_norm),
)
