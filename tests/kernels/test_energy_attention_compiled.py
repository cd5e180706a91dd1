"""CET's kernels compile for a GPU, which this needs none for: the interpreter lets pass what the compiler refuses.

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
SCALARS = ("tokens", "heads", "width", "numbers", "by_image", "by_patch")


def test_kernels_compile_and_fit_at_the_papers_size() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve())]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    used = json.loads(found.stdout)
    assert len(used) == 8 and max(used.values()) <= LEAST_SHARED_MEMORY, used


def shared_memory() -> Iterator[tuple[str, int]]:
    """Bytes that each kernel takes, compiled for a Hopper GPU: attention in TF32 and bfloat16, rows in float32."""
    import triton
    import triton.language as tl

    from paper_repro.kernels.energy_attention import fused as attention
    from paper_repro.kernels.projected_step import fused as rows

    shared: dict[str, Any] = {"GAMMA": 0.25, "WIDE": tl.float32, "Y": 64, "BLOCK": 64}
    single = {"DOT": tl.float32, "PRECISION": "tf32"}
    half = {"DOT": tl.bfloat16, "PRECISION": "ieee"}
    assert attention.takes_whole(121, 64, 4, exact=False) and attention.takes_whole(121, 64, 2, exact=False)
    yield (
        "whole, tf32",
        _compiled(attention._whole, {**shared, **single, "TILE": triton.next_power_of_2(121)}, "fp32", 8),
    )
    yield "whole, bf16", _compiled(attention._whole, {**shared, **half, "TILE": triton.next_power_of_2(121)}, "bf16", 8)
    exact = {**shared, **single, "PRECISION": "ieee", "TILE": attention.EXACT_TILE}
    for kernel in (attention._over_keys, attention._over_queries):
        tiled = {**shared, **single, "TILE": attention.TILE, "BLOCK": 128}
        yield f"{kernel.fn.__name__}, tf32", _compiled(kernel, tiled, "fp32", 4)
        yield f"{kernel.fn.__name__}, float32", _compiled(kernel, exact, "fp32", 4)
    step: dict[str, Any] = {"STEP": 0.1, "WIDE": tl.float32, "BLOCK": 1024}
    yield "tokens", _compiled(rows._tokens, {**step, "EPS": rows.PROJECTION_EPS}, "fp32", 4)
    yield "image", _compiled(rows._image, {**step, "BLOCK": 512, "NUDGED": True, "SIDE": 11, "REACH": 2}, "fp32", 2)


def _compiled(kernel: Any, constants: dict[str, Any], dtype: str, warps: int) -> int:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    whole = [
        name for name in kernel.arg_names if name in SCALARS or name[:2] in ("q_", "k_") or name[:3] in ("bq_", "bk_")
    ]
    types = dict.fromkeys(kernel.arg_names, f"*{dtype}") | dict.fromkeys(whole, "i32")
    types |= {"lse": "*fp32"} if "lse" in types else {}
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", HOPPER, WARP), options={"num_warps": warps})
    return int(compiled.metadata.shared)


if __name__ == "__main__":
    print(json.dumps(dict(shared_memory())))
