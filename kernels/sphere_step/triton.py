"""One pass forward and one backward in Triton: whole rows in registers, every element read once and written once.

Programs stay and take every so many-th tile of rows: the rate is read once by each, and its gradient is summed in
registers, then over programs in a fixed order.  With u = f / |f|, z = h + a (u - h), y = z / |z| and G the gradient of
y,

    dz = (G - y (y . G)) / |z|,   dh = (1 - a) dz,   du = a dz,   df = (du - u (u . du)) / |f|,   da = sum dz (u - h)

where the last sum goes over rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.kernels.triton import TYPES, WARPS_BACKWARD, WARPS_FORWARD, processors, warps_of
from paper_repro.models.common import wide

TILE = 1024
"""Entries of a tile of short rows."""


class SphereStepGradient(FirstOrder):
    """The gradients of h, f and the rate, given G (N, D), h, f, the rate and the inverse norms."""

    @staticmethod
    def forward(gradient: Tensor, h: Tensor, f: Tensor, rate: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient, h, f, rate = gradient.contiguous(), h.contiguous(), f.contiguous(), rate.contiguous()
        count, width = h.shape
        rows, block, warps, programs = configuration(count, width, WARPS_BACKWARD, h.device)
        dh, df = torch.empty_like(h), torch.empty_like(f)
        partial = torch.empty(programs, width, dtype=inverse.dtype, device=h.device)  # (programs, D)
        with torch.cuda.device_of(h):
            _backward[(programs,)](
                gradient, h, f, rate, inverse, dh, df, partial, count, width,
                WIDE=TYPES[inverse.dtype], ROWS=rows, BLOCK=block, num_warps=warps,
            )
        return dh, df, partial.sum(0).to(rate.dtype)


class SphereStep(WithGradient):
    """Maps h (N, D), f (N, D) and the rate a, (D,), to the step (N, D), and 1/|f| and 1/|z|, (2, N)."""

    gradient = SphereStepGradient

    @staticmethod
    def forward(h: Tensor, f: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        h, f, rate = h.contiguous(), f.contiguous(), rate.contiguous()
        count, width = h.shape
        dtype = wide(h, f, rate)
        out, inverse = torch.empty_like(h), torch.empty(2, count, dtype=dtype, device=h.device)
        rows, block, warps, programs = configuration(count, width, WARPS_FORWARD, h.device)
        with torch.cuda.device_of(h):
            _forward[(programs,)](
                h, f, rate, out, inverse, count, width, WIDE=TYPES[dtype], ROWS=rows, BLOCK=block, num_warps=warps,
            )
        return out, inverse


def configuration(count: int, width: int, warps_per_processor: int, device: torch.device) -> tuple[int, int, int, int]:
    """Choose for ``count`` rows of ``width`` the rows and columns of a tile, a program's warps, and the programs."""
    block = triton.next_power_of_2(width)
    rows = max(1, TILE // block)
    warps = warps_of(rows * block)
    programs = processors(device) * max(1, warps_per_processor // warps)
    return rows, block, warps, min(triton.cdiv(count, rows), programs)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    h, f, rate, out, inverse, count, width, WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.arange(0, BLOCK)
    a = tl.load(rate + column, mask=column < width, other=0.0).to(WIDE)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        present = row < count
        inside = present[:, None] & (column < width)[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        branch = tl.load(f + at, mask=inside, other=0.0).to(WIDE)  # (ROWS, BLOCK)
        state = tl.load(h + at, mask=inside, other=0.0).to(WIDE)  # (ROWS, BLOCK)
        f_inverse = 1.0 / tl.sqrt(tl.where(present, tl.sum(branch * branch, axis=1), 1.0))
        z = state + a * (branch * f_inverse[:, None] - state)
        z_inverse = 1.0 / tl.sqrt(tl.where(present, tl.sum(z * z, axis=1), 1.0))
        tl.store(out + at, (z * z_inverse[:, None]).to(out.dtype.element_ty), mask=inside)
        tl.store(inverse + row, f_inverse, mask=present)
        tl.store(inverse + count + row, z_inverse, mask=present)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    gradient, h, f, rate, inverse, dh, df, partial, count, width,
    WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    a = tl.load(rate + column, mask=column < width, other=0.0).to(WIDE)[None, :]
    total = tl.zeros((ROWS, BLOCK), WIDE)  # (ROWS, BLOCK)
    for tile in range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        present = row < count
        inside = present[:, None] & (column < width)[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        branch = tl.load(f + at, mask=inside, other=0.0).to(WIDE)  # (ROWS, BLOCK)
        state = tl.load(h + at, mask=inside, other=0.0).to(WIDE)  # (ROWS, BLOCK)
        G = tl.load(gradient + at, mask=inside, other=0.0).to(WIDE)  # (ROWS, BLOCK)
        f_inverse = tl.load(inverse + row, mask=present, other=0.0)[:, None]
        z_inverse = tl.load(inverse + count + row, mask=present, other=0.0)[:, None]
        u = branch * f_inverse
        y = (state + a * (u - state)) * z_inverse
        dz = (G - y * tl.sum(y * G, axis=1)[:, None]) * z_inverse
        total += dz * (u - state)
        du = a * dz
        tl.store(dh + at, (dz - du).to(dh.dtype.element_ty), mask=inside)
        dbranch = (du - u * tl.sum(u * du, axis=1)[:, None]) * f_inverse
        tl.store(df + at, dbranch.to(df.dtype.element_ty), mask=inside)
    summed = tl.sum(total, axis=0)  # (BLOCK,)
    tl.store(partial + tl.program_id(0).to(tl.int64) * width + column, summed, mask=column < width)
