"""The definition: pairs turned, rows of unit norm, scaled; differentiable to any order."""

import torch
from torch import Tensor

from paper_repro.kernels.qk_rotary.tables import RotaryTables


def rotate(x: Tensor, tables: RotaryTables, scale: Tensor | None, normalize: bool) -> Tensor:
    """Rotate x (B, T, H, Y) to (B, H, T, Y), a view of (B, T, H, Y)."""
    given = [x, *tables] if scale is None else [x, *tables, scale]
    dtype = wide(*given)
    a, b = x.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)
    cos, first, second = (table[: x.shape[1], None].to(dtype) for table in tables)
    out = torch.stack([cos * a - first * b, second * a + cos * b], -1).flatten(-2)
    if normalize:
        out = out / torch.linalg.vector_norm(out, dim=-1, keepdim=True)
    if scale is not None:
        out = out * scale.to(dtype)
    return out.to(x.dtype).transpose(1, 2)


def wide(*tensors: Tensor) -> torch.dtype:
    """Return what these are computed in: float32, or float64 where one of them is."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
