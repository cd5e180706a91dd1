"""The definition, differentiable to any order."""

from torch import Tensor
from torch.nn import functional


def swiglu(pre: Tensor) -> Tensor:
    """Compute SiLU(g) * u, (..., M), of pre = [g, u], (..., 2M)."""
    gate, up = pre.chunk(2, -1)  # (..., M) each
    return functional.silu(gate) * up
