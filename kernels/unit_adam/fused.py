"""One launch for all parameters of one width and dtype: every number is read once and written once.

The kernel finds the tensors by a table of addresses, because a launch per parameter would cost the host more time than
the device needs for it.  A program takes some whole rows of one parameter (R, D) or, without unit rows, some numbers.
"""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.unit_adam.reference import Four, Settings, wide

TILE, PER_THREAD, VECTOR_BYTES = 2048, 16, 16
_TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
_NUMBERS = tl.constexpr(8)
_COLUMNS = tl.constexpr(5)


def adam_(given: Sequence[Four], settings: Settings, unit_rows: bool) -> None:
    """See ``kernels.unit_adam.adam_``; contiguous, none empty."""
    alike: dict[Any, list[Four]] = {}
    for four in given:
        width = four[0].shape[-1] if unit_rows else 0
        alike.setdefault((width, *[tensor.dtype for tensor in four]), []).append(four)
    device = given[0][0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        for (width, *dtypes), members in alike.items():
            _launch(members, width, dtypes, settings, device)


def _launch(
    members: Sequence[Four], width: int, dtypes: Sequence[torch.dtype], settings: Settings, device: torch.device
) -> None:
    block = triton.next_power_of_2(width) if width else TILE
    rows = max(1, TILE // block)
    counts = [four[0].numel() // (width or 1) for four in members]
    addresses = [[*(tensor.data_ptr() for tensor in four), count] for four, count in zip(members, counts, strict=True)]
    aligned = all(address % VECTOR_BYTES == 0 for entry in addresses for address in entry[:4])
    aligned = aligned and all(width * dtype.itemsize % VECTOR_BYTES == 0 for dtype in dtypes)
    numbers, table = _on(device, settings, addresses)  # (8,) and (5 parameters,)
    jobs = _jobs(tuple(counts), rows if width else block, device)
    _step[(len(jobs),)](
        table,
        numbers,
        jobs,
        *(_TYPES[dtype] for dtype in dtypes),
        WIDE=_TYPES[wide(dtypes[0])],
        WIDTH=width or block,
        ROWS=rows,
        BLOCK=block,
        UNIT=width > 0,
        ALIGNED=aligned,
        num_warps=min(max(rows * block // PER_THREAD // 32, 1), 16),
    )


def _on(device: torch.device, settings: Settings, addresses: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return the step's numbers, float64, and the table of addresses; one copy, for which the host does not wait."""
    numbers = torch.zeros(_NUMBERS.value, dtype=torch.float64)
    values = (
        settings.kept,
        1 - settings.beta1,
        settings.beta2,
        1 - settings.beta2,
        settings.size,
        settings.root,
        settings.eps,
    )
    numbers[: len(values)] = torch.tensor(values, dtype=torch.float64)
    both = torch.cat([numbers.view(torch.int64), torch.tensor(addresses, dtype=torch.int64).flatten()])
    if device.type == "cuda":
        both = both.pin_memory().to(device, non_blocking=True)
    return both[: _NUMBERS.value].view(torch.float64), both[_NUMBERS.value :]


@functools.lru_cache(maxsize=16)
def _jobs(counts: tuple[int, ...], each: int, device: torch.device) -> Tensor:
    """Return which tensor, and which chunk of ``each`` rows or numbers of it, each program takes: (programs, 2)."""
    chunks = torch.tensor([-(-count // each) for count in counts])
    tensors = torch.arange(len(counts)).repeat_interleave(chunks)
    first = (chunks.cumsum(0) - chunks).repeat_interleave(chunks)
    return torch.stack([tensors, torch.arange(len(tensors)) - first], 1).to(torch.int32).to(device)


@triton.jit
def _tile(address, kind: tl.constexpr, at, aligned: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return pointers to the numbers ``at`` of the tensor of this kind at this address."""
    pointers = tl.load(address).to(tl.pointer_type(kind)) + at
    if aligned:
        pointers = tl.multiple_of(pointers, (1, 16))
    return pointers


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    table,
    numbers,
    jobs,
    P: tl.constexpr,
    G: tl.constexpr,
    M: tl.constexpr,
    V: tl.constexpr,
    WIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    job = jobs + 2 * tl.program_id(0)
    entry = table + _COLUMNS * tl.load(job)
    row = tl.load(job + 1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row[:, None] * WIDTH + column[None, :]  # (ROWS, BLOCK)
    count = tl.load(entry + 4)
    inside = (row < count)[:, None] & (column < WIDTH)[None, :] if UNIT else at < count
    p_at = _tile(entry, P, at, ALIGNED)
    m_at = _tile(entry + 2, M, at, ALIGNED)
    v_at = _tile(entry + 3, V, at, ALIGNED)
    g = tl.load(_tile(entry + 1, G, at, ALIGNED), mask=inside, other=0.0).to(WIDE)
    p = tl.load(p_at, mask=inside, other=0.0).to(WIDE)  # (ROWS, BLOCK)
    m = tl.load(m_at, mask=inside, other=0.0).to(WIDE)
    v = tl.load(v_at, mask=inside, other=0.0).to(WIDE)
    m += tl.load(numbers + 1).to(WIDE) * (g - m)
    v = tl.load(numbers + 2).to(WIDE) * v + tl.load(numbers + 3).to(WIDE) * g * g
    tl.store(m_at, m.to(M), mask=inside)
    tl.store(v_at, v.to(V), mask=inside)
    root = tl.load(numbers + 5).to(WIDE)
    eps = tl.load(numbers + 6).to(WIDE)
    p = tl.load(numbers).to(WIDE) * p - tl.load(numbers + 4).to(WIDE) * (m / (tl.sqrt(v) / root + eps))
    if UNIT:
        squared = tl.where(row < count, tl.sum(p * p, axis=1), 1.0)  # (ROWS,)
        p = p * (1.0 / tl.sqrt(squared))[:, None]
    tl.store(p_at, p.to(P), mask=inside)
