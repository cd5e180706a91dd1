"""Compiles every Triton kernel for an H100 that need not be there; prints registers, spills and shared memory.

Triton sees what a GPU would be given: tensors of the meta device, and the properties of the device.  It decides when it
is imported whether it interprets: tests, which do, start this file as a process of its own.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from paper_repro.kernels.energy_attention.triton import energy_attention
from paper_repro.kernels.linear_ce.triton import softmax
from paper_repro.kernels.projected_step.triton import image_step, projected_step
from paper_repro.kernels.qk_rotary.triton import Rotation, RotationGradient
from paper_repro.kernels.scaled_swiglu.triton import ScaledSwiGLU, ScaledSwiGLUGradient
from paper_repro.kernels.self_slot_attention.triton import Attention, AttentionCurvature, AttentionGradient
from paper_repro.kernels.sphere_step.triton import SphereStep, SphereStepGradient
from paper_repro.kernels.tied_attention import triton as tied
from paper_repro.kernels.tied_attention.triton import tiles

CAPABILITY = 90
"""Ten times that of an H100."""
BF16, FP32 = torch.bfloat16, torch.float32
_run = JITFunction.run


def meta(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")  # (...,)


def differentiated(width: int, values: int, dtype: torch.dtype, tokens: int, lead: int, whole: bool = True) -> None:
    """All passes of EBT's attention, with every option where ``whole``."""
    query, keys = (meta(1, 2, length, width, dtype=dtype) for length in (tokens, tokens + lead))  # (B, H, ..., Y) each
    out, read = (meta(1, 2, length, values, dtype=dtype) for length in (tokens, tokens + lead))  # (B, H, ..., Z) each
    given = query, query, out, keys, read
    _, lse = Attention.forward(*given, lead, 0.1)
    AttentionGradient.forward(out, *given, out, lse, lead, 0.1, (True,) * 5)
    along = query, query, out, *((keys, read) if whole else (None, None))
    AttentionCurvature.forward(*along, out, *given, out, lse, lead, 0.1, None, (True,) * 6)


def energies(tokens: int, width: int, dtype: torch.dtype) -> None:
    query, key = (meta(2, 12, tokens, width, dtype=dtype) for _ in range(2))  # (B, H, T, Y) each
    energy_attention(query, key, 0.25, None)


def step_and_back(heads: int, width: int, shared: bool) -> None:
    """An inner step of CEM's attention, and the way back."""
    query, keys, direction = (meta(8, 2048, heads, width, dtype=BF16) for _ in range(3))  # (B, T, H, Y) each
    state, context = (meta(8, 2048, heads * width, dtype=BF16) if shared else None for _ in range(2))  # (B, T, D)
    given = query, keys, state, context, meta(heads), meta(), meta()
    out, lse = tied.TiedAttention.forward(*given, 8.0)
    tied.TiedAttentionGradient.forward(direction, *given, out, lse, 8.0)


def with_a_tail() -> None:
    """Tiles of which no two sides are equal, so that a variable of two shapes is found."""
    with mock.patch.object(tied, "tiles", lambda *given, **own: tiles(*given, **own)._replace(other=128)):
        step_and_back(6, 40, True)


def piece(gradient: bool) -> None:
    softmax(meta(1024, 32000, dtype=BF16), meta(1024, dtype=torch.int64), gradient)


def activated() -> None:
    pre, out = (meta(8192, columns, dtype=BF16) for columns in (2 * 4096, 4096))  # (N, 2M), (N, M)
    ScaledSwiGLU.forward(pre, meta(4096), meta(4096))
    ScaledSwiGLUGradient.forward(out, pre, meta(4096), meta(4096))


def turned(width: int, unit: bool, dtype: torch.dtype) -> None:
    x, _, _ = meta(8, 1024, 3, 16, width, dtype=dtype).unbind(2)  # (B, T, H, Y) each
    tables, scale = [meta(1024, width // 2)] * 3, meta(16, width) if unit else None
    out = Rotation.forward(x, *tables, scale, unit)
    RotationGradient.forward(out, x, *tables, scale, unit)


def relaxed() -> None:
    """A step of CET's tokens and of its image, free and nudged."""
    z, y = meta(128, 121, 768), meta(128, 12, 12, 300)  # (B, N, D), (B, S, S, C)
    projected_step(z, meta(128, 121, 768), 1.0, z)
    patches = meta(128, 121, 5808)[..., 5808 - 4 * 300 :]  # (B, N, 4 C)
    for wanted, beta in ((None, None), (torch.empty_like(y), meta(128))):
        image_step(y, patches, meta(300), 1.0, wanted, beta, torch.empty_like(y))


def on_the_sphere() -> None:
    h, f, alpha = meta(8192, 1024), meta(8192, 1024, dtype=BF16), meta(1024)  # (N, D) twice, (D,)
    out, inverse = SphereStep.forward(h, f, alpha)
    SphereStepGradient.forward(out, h, f, alpha, inverse)


ODD: list[Callable[[], None]] = [
    partial(differentiated, 20, 40, BF16, 50, 1),
    partial(differentiated, 128, 128, FP32, 50, 0),
    partial(energies, 121, 20, BF16),
    with_a_tail,
]
PAPERS: list[Callable[[], None]] = [
    partial(differentiated, 64, 64, FP32, 256, 0, False),
    partial(energies, 121, 64, FP32),
    partial(energies, 121, 64, BF16),
    partial(step_and_back, 8, 84, True),
    partial(step_and_back, 12, 64, False),
    partial(piece, True),
    partial(piece, False),
    activated,
    partial(turned, 64, True, BF16),
    partial(turned, 84, False, BF16),
    partial(turned, 96, False, FP32),
    relaxed,
    on_the_sphere,
]


class Driver:
    """The part of Triton's driver that compiling reads."""

    def get_current_device(self) -> int:
        return CAPABILITY

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)


def programs(case: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Compile what a case launches; nothing is started."""
    found: list[dict[str, Any]] = []

    def instead(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        compiled = _run(kernel, *arguments, grid=grid, warmup=True, **options)
        binary = next(path for name, path in compiled.metadata_group.items() if name.endswith(".cubin"))
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(Path(binary))]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used = {name: int(value) for name, value in re.findall(r"\b(REG|STACK):(\d+)", printed)}
        folder = kernel.fn.__module__.removeprefix("paper_repro.kernels.").rpartition(".")[0]
        row = {"kernel": f"{folder}.{kernel.fn.__name__}", "registers": used["REG"], "spilled": used["STACK"]}
        found.append(row | {"shared": compiled.metadata.shared})

    before = driver._active
    driver.set_active(Driver())
    JITFunction.run = instead
    try:
        case()
    finally:
        JITFunction.run = _run
        driver.set_active(before)
    yield from found


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    groups = {"papers": PAPERS, "odd": ODD}
    print(json.dumps({name: [row for case in cases for row in programs(case)] for name, cases in groups.items()}))
