"""SwiGLU of EBT's trunk, for losses that contain a gradient: its second derivatives by hand.

nGPT's, with scales and with the gate in the second half, is ``kernels.scaled_swiglu``.  Legend: M hidden width.
"""

from torch import Tensor

from paper_repro.kernels.dispatch import Way, choose, closed_form_way
from paper_repro.kernels.swiglu import closed_form, reference


def swiglu(pre: Tensor, implementation: str = "auto") -> Tensor:
    """Compute SiLU(g) * u of pre = [g, u] (Shazeer, arXiv 2002.05202).

    "reference" is the definition, which autograd differentiates to any order.  "closed_form" (PyTorch) has first and
    second derivatives in reverse mode, by autograd and by torch.func.grad in any nesting of two; for them it keeps its
    input alone.  "auto" takes it where second derivatives may be asked for, outside of vmap, torch.compile and
    autocast.

    Args:
        pre: (..., 2M).

    Returns:
        (..., M).

    Raises:
        ValueError: an odd last dimension, an unknown implementation, or one that is not possible.
        NotImplementedError: a third or forward-mode derivative of the closed form.
    """
    if pre.ndim == 0 or pre.shape[-1] % 2:
        raise ValueError(f"the shape must be (..., 2M), got {tuple(pre.shape)}")
    return choose("swiglu", WAYS, implementation, (pre,))(pre)


WAYS = (
    closed_form_way(closed_form.swiglu, order=2, auto_order=2),
    Way("reference", reference.swiglu),
)
