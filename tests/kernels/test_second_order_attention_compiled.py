"""The kernels compile for a GPU, which this needs none for: the interpreter lets pass what the compiler refuses.

Triton decides when it is imported whether it interprets, so this file starts itself as a child process that does not.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HOPPER, WARP = 90, 32
LEAST_SHARED_MEMORY = 163 << 10
"""Bytes that a program may have on an A100; Hopper has 227 kB."""
GIVEN = ("query", "keys", "values", "direction", "along_query", "along_keys", "along_values")
WIDTHS = 20, 40
"""No two sides of a program's tiles are then equal: a variable of two shapes is found."""


def test_kernels_compile_and_fit() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve())]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    used = json.loads(found.stdout)
    assert len(used) == 6 and max(used.values()) <= LEAST_SHARED_MEMORY, used


def shared_memory() -> Iterator[tuple[str, int]]:
    """Bytes that each kernel takes, compiled for a Hopper GPU: with all options, in TF32 or bfloat16."""
    from paper_repro.kernels.self_slot_attention import fused
    from paper_repro.kernels.self_slot_attention.curvature import fused as curvature

    both = {"KEYS": True, "VALUES": True}
    along = {"ALONG_KEYS": True, "ALONG_VALUES": True}
    yield "forward", _compiled(fused._forward, "bf16", WIDTHS, {})
    yield "rows", _compiled(fused._to_rows, "bf16", WIDTHS, {})
    yield "columns", _compiled(fused._to_columns, "bf16", WIDTHS, both)
    yield "rows, twice", _compiled(curvature._bend_rows, "fp32", WIDTHS, along)
    yield "columns, twice", _compiled(curvature._bend_columns, "bf16", WIDTHS, both | along)
    yield "widest columns, twice", _compiled(curvature._bend_columns, "fp32", (128, 128), both | along)


def _compiled(kernel: Any, dtype: str, widths: tuple[int, int], options: dict[str, bool]) -> int:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from paper_repro.kernels.self_slot_attention import fused

    blocks = [max(fused.LEAST, triton.next_power_of_2(width)) for width in widths]
    constants: dict[str, Any] = {
        "SCALE": 0.125,
        "LEAD": 1,
        "WIDE": tl.float32,
        "DOT": tl.bfloat16 if dtype == "bf16" else tl.float32,
        "PRECISION": "ieee" if dtype == "bf16" else "tf32",
        "Y": widths[0],
        "Z": widths[1],
        "BLOCK_Y": blocks[0],
        "BLOCK_Z": blocks[1],
        "TILE": fused.tile(max(blocks), 2 if dtype == "bf16" else 4, exact=False),
        **options,
    }
    types = {name: f"*{dtype}" if name in GIVEN else "*fp32" for name in kernel.arg_names}
    types |= dict.fromkeys(("tokens", "columns", "samples"), "i32") | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, types, constants)
    target = GPUTarget("cuda", HOPPER, WARP)
    return int(triton.compile(source, target=target, options={"num_warps": 4, "num_stages": 1}).metadata.shared)


if __name__ == "__main__":
    print(json.dumps(dict(shared_memory())))
