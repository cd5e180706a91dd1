"""One pass over rows in Triton: tokens of D numbers, blocks of the image of C; each is read once and written once.

A program of ``_image`` takes a block: it gathers the up to k^2 patches that cover it, so that nothing is added
atomically.  Formulas: see ``reference``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.triton import TYPES, warps_of
from paper_repro.models.common import PROJECTION_EPS, reach_and_side


def projected_step(z: Tensor, target: Tensor, step_size: float, out: Tensor | None) -> Tensor:
    """Compute z'; as ``kernels.projected_step``."""
    z, target = z.contiguous(), target.contiguous()
    found = _result(z, out)
    width = z.shape[-1]
    with torch.cuda.device_of(z):
        _tokens[(z.numel() // width,)](
            z, target, found, width, STEP=step_size, EPS=PROJECTION_EPS, **_configuration(z, width)
        )
    return found if out is None or found is out else out.copy_(found)


def image_step(
    y: Tensor, patches: Tensor, bias: Tensor, step_size: float, wanted: Tensor | None, beta: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """Compute y'; as ``kernels.projected_step``."""
    y, bias = y.contiguous(), bias.contiguous()
    patches = patches if patches.stride(2) == 1 else patches.contiguous()
    reach, side = reach_and_side(patches, y)
    nudge = (y, y) if wanted is None or beta is None else (wanted.contiguous(), beta.contiguous())
    found = _result(y, out)
    with torch.cuda.device_of(y):
        _image[(y.numel() // y.shape[3],)](
            y, patches, bias, *nudge, found, y.shape[3], *patches.stride()[:2],
            STEP=step_size, NUDGED=wanted is not None, SIDE=side, REACH=reach, **_configuration(y, y.shape[3]),
        )
    return found if out is None or found is out else out.copy_(found)


def _result(like: Tensor, out: Tensor | None) -> Tensor:
    return out if out is not None and out.is_contiguous() and out.dtype == like.dtype else torch.empty_like(like)


def _configuration(like: Tensor, width: int) -> dict[str, object]:
    block = triton.next_power_of_2(width)
    wide = TYPES.get(like.dtype, tl.float32)
    return {"WIDE": wide, "BLOCK": block, "num_warps": warps_of(block)}


@triton.jit
def _towards(start, end, STEP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Interpolate as torch.lerp: exactly the end after a step of 1."""
    if STEP < 0.5:
        return start + STEP * (end - start)
    return end - (1 - STEP) * (end - start)


@triton.jit
def _tokens(  # type: ignore[no-untyped-def]
    z, target, out, width, STEP: tl.constexpr, EPS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    state = tl.load(z + row * width + column, mask=inside, other=0.0).to(WIDE)  # (BLOCK,)
    wanted = tl.load(target + row * width + column, mask=inside, other=0.0).to(WIDE)
    moved = _towards(state, wanted, STEP)
    centred = tl.where(inside, moved - tl.sum(moved, axis=0) / width, 0.0)
    moved = centred / tl.sqrt(tl.sum(centred * centred, axis=0) / width + EPS)
    tl.store(out + row * width + column, moved.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _image(  # type: ignore[no-untyped-def]
    y, patches, bias, wanted, beta, out, numbers, by_image, by_patch,
    STEP: tl.constexpr, NUDGED: tl.constexpr, SIDE: tl.constexpr, REACH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    blocks: tl.constexpr = SIDE + REACH - 1
    image, at = row // (blocks * blocks), row % (blocks * blocks)
    column = tl.arange(0, BLOCK)
    inside = column < numbers
    state = tl.load(y + row * numbers + column, mask=inside, other=0.0).to(WIDE)  # (BLOCK,)
    target = tl.load(bias + column, mask=inside, other=0.0).to(WIDE)
    for index in tl.static_range(REACH * REACH):
        r = at // blocks - index // REACH
        q = at % blocks - index % REACH
        covered = (r >= 0) & (r < SIDE) & (q >= 0) & (q < SIDE)
        here = column < tl.where(covered, numbers, 0)
        part = image * by_image + (r * SIDE + q) * by_patch + index * numbers + column
        target += tl.load(patches + part, mask=here, other=0.0).to(WIDE)
    if NUDGED:
        strength = 2 * tl.load(beta + image).to(WIDE)
        goal = tl.load(wanted + row * numbers + column, mask=inside, other=0.0).to(WIDE)
        target -= strength * (state - goal)
    moved = _towards(state, target, STEP)
    tl.store(out + row * numbers + column, moved.to(out.dtype.element_ty), mask=inside)
