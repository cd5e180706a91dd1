"""The kernels compile for a GPU, which this needs none for: the interpreter lets pass what the compiler refuses.

Triton decides when it is imported whether it interprets, so this file starts itself as a child process that does not.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paper_repro.kernels.tied_attention.tiles import LEAST, tiles

HOPPER, WARP = 90, 32
LEAST_SHARED_MEMORY = 163 << 10
"""Bytes that a program may have on an A100; Hopper has 227 kB."""
FLOAT32 = ("slopes", "bias_self", "bias_cross", "lse", "delta", "partial", "dkeys")
HEADS, WIDTH = 6, 20
"""No two sides of a program's tiles are then equal: a variable of two shapes is found."""


def test_kernels_compile_in_bfloat16_and_fit() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve())]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    used = json.loads(found.stdout)
    assert len(used) == 3 and max(used.values()) <= LEAST_SHARED_MEMORY


def test_heads_that_share_a_score_stay_together_where_their_results_fit_in_the_registers() -> None:
    assert tiles(12, 64, True, 2, 1).group == tiles(12, 56, True, 2, 2).group == 16
    assert tiles(8, 84, True, 2, 1).group == 8 and tiles(12, 72, True, 2, 1).group == 8
    assert tiles(12, 64, False, 2, 1).group == 4 and tiles(1, 64, False, 2, 1).group == 1
    for heads, width, size, reads in (
        (h, w, s, r) for h in (1, 3, 40) for w in (1, 72, 256) for s in (2, 4) for r in (1, 2)
    ):
        plan = tiles(heads, width, True, size, reads)
        assert plan.block >= max(width, LEAST) and plan.group * plan.own * plan.block * 4 <= 1 << 17
        assert all(number & (number - 1) == 0 and number > 0 for number in plan)


def shared_memory() -> dict[str, int]:
    """Bytes that each kernel takes, compiled for a Hopper GPU, with the score that heads share."""
    from paper_repro.kernels.tied_attention import fused

    return {
        kernel.fn.__name__: _compiled(kernel, over_queries=kernel is fused._to_keys)
        for kernel in (fused._forward, fused._to_queries, fused._to_keys)
    }


def _compiled(kernel: Any, over_queries: bool) -> int:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    plan = tiles(HEADS, WIDTH, True, 2, 2 if over_queries else 1)
    assert len({plan.group, plan.own, plan.other, plan.block}) == 4
    rows, columns = (plan.other, plan.own) if over_queries else (plan.own, plan.other)
    constants = {
        "INVERSE_TAU": 0.125,
        "WIDE": tl.float32,
        "DOT": tl.bfloat16,
        "PRECISION": "ieee",
        "Y": WIDTH,
        "D": HEADS * WIDTH,
        "GROUP": plan.group,
        "BLOCK": plan.block,
        "PART": 64,
        "ROWS": rows,
        "COLUMNS": columns,
    }
    types = {name: "*fp32" if name in FLOAT32 else "*bf16" for name in kernel.arg_names}
    types |= {"tokens": "i32", "heads": "i32"} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, types, constants)
    target, options = GPUTarget("cuda", HOPPER, WARP), {"num_warps": plan.warps, "num_stages": 2}
    return int(triton.compile(source, target=target, options=options).metadata.shared)


if __name__ == "__main__":
    print(json.dumps(shared_memory()))
